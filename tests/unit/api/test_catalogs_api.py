"""Catalogs, acceptances, aliases, artifacts over HTTP: what is frozen is cached for ever, what moves is asked again."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parent))

from finished_jobs import accepted, finished_job, give_verdict

import catalogs
from tuner_service.api import schemas_catalogs


@pytest.fixture(scope="module")
def frozen(served: Any) -> dict[str, Any]:
    response = served.http.post("/v1/catalogs", json={"jobs": [finished_job(served)], "labels": {"team": "k"}})
    assert response.status_code == 201, response.text
    schemas_catalogs.FrozenDocument.model_validate(response.json())
    assert response.headers["location"] == f"/v1/catalogs/{response.json()['candidate']['digest']}"
    found: dict[str, Any] = response.json()
    return found


def test_a_catalog_is_served_as_its_canonical_bytes_for_ever(frozen: dict[str, Any], http: httpx.Client) -> None:
    for role in ("candidate", "reference"):
        digest = frozen[role]["digest"]
        response = http.get(f"/v1/catalogs/{digest}")
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["etag"] == f'"{digest}"'
        schemas_catalogs.CatalogDocument.model_validate(response.json())
        catalog = catalogs.Catalog.from_bytes(response.content, digest=digest)
        assert catalogs.canonical_json(catalog.document()) == response.content
        assert catalog.role == role
        for tag in (f'"{digest}"', f'"x", W/"{digest}"', "*"):
            again = http.get(f"/v1/catalogs/{digest}", headers={"If-None-Match": tag})
            assert (again.status_code, again.content) == (304, b"")
        assert http.get(f"/v1/catalogs/{digest}", headers={"If-None-Match": '"x"'}).status_code == 200


def test_freezing_again_gives_the_same_digests(frozen: dict[str, Any], http: httpx.Client) -> None:
    response = http.post("/v1/catalogs", json={"jobs": frozen["candidate"]["jobs"]})
    assert response.status_code == 201
    assert response.json()["candidate"] == frozen["candidate"]
    assert response.json()["reference"] == frozen["reference"]


def test_two_winners_of_one_key_are_a_conflict_that_names_both_jobs(served: Any, http: httpx.Client) -> None:
    one, other = finished_job(served, rows=5), finished_job(served, rows=5, best=1)
    response = http.post("/v1/catalogs", json={"jobs": [one, other]})
    assert response.status_code == 409
    assert response.json()["type"] == "/problems/conflict"
    assert one in response.json()["detail"]
    assert other in response.json()["detail"]


def test_an_unfinished_job_and_an_unknown_one(served: Any, http: httpx.Client) -> None:
    queued = http.post("/v1/jobs", json={"cases": [{"kernel": "softmax", "dims": {"rows": 2, "cols": 8}}]}).json()
    assert http.post("/v1/catalogs", json={"jobs": [queued["id"]]}).status_code == 409
    response = http.post("/v1/catalogs", json={"jobs": ["job_nothing"]})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "/jobs/0"


def test_catalogs_are_listed_in_pages(frozen: dict[str, Any], served: Any, http: httpx.Client) -> None:
    http.post("/v1/catalogs", json={"jobs": [finished_job(served, rows=6)]})
    seen, cursor = [], None
    while True:
        page = http.get("/v1/catalogs", params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
        schemas_catalogs.CatalogPage.model_validate(page)
        seen += [one["digest"] for one in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == page["total"] >= 4
    candidates = http.get("/v1/catalogs?role=candidate").json()
    assert {one["role"] for one in candidates["items"]} == {"candidate"}
    assert http.get("/v1/catalogs?role=best").status_code == 422
    assert http.get("/v1/catalogs?cursor=abc").status_code == 422


def test_promotion_needs_an_acceptance_and_leads_back(frozen: dict[str, Any], served: Any, http: httpx.Client) -> None:
    digest = frozen["candidate"]["digest"]
    assert http.get("/v1/aliases/prod").status_code == 404
    refused = http.put("/v1/aliases/prod", json={"digest": digest})
    assert refused.status_code == 409
    assert f"/v1/catalogs/{digest}/acceptances" in refused.json()["detail"]
    acceptance_id = accepted(served, digest)
    assert acceptance_id in served.context.runtime.woken
    response = http.put("/v1/aliases/prod", json={"digest": digest})
    assert response.status_code == 200, response.text
    schemas_catalogs.ManifestDocument.model_validate(response.json())
    manifest = catalogs.Manifest.from_bytes(response.content, name="manifest")
    assert [entry.digest for entry in manifest.entries] == [digest]
    assert manifest.entries[0].reference == frozen["reference"]["digest"]

    first = http.get("/v1/aliases/prod")
    assert first.headers["cache-control"] == "no-cache"
    etag = first.headers["etag"]
    assert http.get("/v1/aliases/prod", headers={"If-None-Match": etag}).status_code == 304
    other = http.post("/v1/catalogs", json={"jobs": [finished_job(served, rows=9)]}).json()["candidate"]["digest"]
    accepted(served, other)
    assert http.put("/v1/aliases/prod", json={"digest": other}).json()["entries"][0]["digest"] == other
    moved = http.get("/v1/aliases/prod", headers={"If-None-Match": etag})
    assert moved.status_code == 200
    assert moved.json()["history"][0]["entries"][0]["digest"] == digest
    back = http.post("/v1/aliases/prod/rollback")
    assert back.json()["entries"][0]["digest"] == digest
    assert http.post("/v1/aliases/prod/rollback").status_code == 409
    assert http.get("/v1/aliases").json()["items"][0]["alias"] == "prod"


def test_winners_answer_from_a_frozen_catalog(frozen: dict[str, Any], served: Any, http: httpx.Client) -> None:
    digest = frozen["candidate"]["digest"]
    accepted(served, digest, alias="lookups")
    http.put("/v1/aliases/lookups", json={"digest": digest})
    asked = {"kernel": "softmax", "dims": "rows:4,cols:33"}
    entries = http.get(f"/v1/catalogs/{digest}").json()["entries"]
    for catalog in (digest, "lookups"):
        response = http.get("/v1/winners", params={**asked, "catalog": catalog})
        assert response.status_code == 200, response.text
        assert response.json() == entries[0]
    finished_job(served, rows=11)  # has a winner, which the catalog was frozen without
    live = {"kernel": "softmax", "dims": "rows:11,cols:33"}
    assert http.get("/v1/winners", params=live).status_code == 200
    miss = http.get("/v1/winners", params={**live, "catalog": "lookups"})
    assert miss.status_code == 404
    assert miss.json()["misses"][0]["differs"] == {"dims.rows": [11, 4]}
    other_toolchain = http.get("/v1/winners", params={**asked, "catalog": "lookups", "toolchain": "0" * 64})
    assert other_toolchain.status_code == 404
    for unknown, status in (("e" * 64, 404), ("nothing", 404), ("No Alias", 422)):
        assert http.get("/v1/winners", params={**asked, "catalog": unknown}).status_code == status


def test_an_acceptance_from_queued_to_its_evidence(frozen: dict[str, Any], served: Any, http: httpx.Client) -> None:
    digest = frozen["candidate"]["digest"]
    response = http.post(f"/v1/catalogs/{digest}/acceptances")
    assert response.status_code == 202
    found = response.json()
    schemas_catalogs.AcceptanceDocument.model_validate(found)
    assert response.headers["location"] == f"/v1/acceptances/{found['id']}"
    assert (found["state"], found["rounds"], found["catalog"]) == ("queued", 4, digest)
    assert http.get(f"/v1/acceptances/{found['id']}/evidence").status_code == 409
    assert http.get(f"/v1/acceptances/{found['id']}").json() == found
    assert found["id"] in [one["id"] for one in http.get(f"/v1/acceptances?catalog={digest}").json()["items"]]
    give_verdict(served, found["id"], "rejected")
    evidence = http.get(f"/v1/acceptances/{found['id']}/evidence")
    assert evidence.json() == {"kind": "acceptance_evidence"}
    assert evidence.headers["etag"] == '"' + "d" * 64 + '"'
    assert http.post(f"/v1/acceptances/{found['id']}/cancel").status_code == 409


def test_a_post_that_is_sent_again_with_its_key_makes_nothing_new(
    frozen: dict[str, Any], served: Any, http: httpx.Client
) -> None:
    digest = frozen["candidate"]["digest"]
    path, once = f"/v1/catalogs/{digest}/acceptances", {"Idempotency-Key": "replay-1"}
    made = http.post(path, json={"alias": "twice"}, headers=once)
    assert made.status_code == 202
    assert http.post(path, json={"alias": "twice"}, headers=once).json()["id"] == made.json()["id"]
    assert http.post(path, json={"alias": "twice"}).json()["id"] != made.json()["id"], "without a key it is another"
    for other, body in ((path, {"alias": "other"}), (f"/v1/catalogs/{'0' * 64}/acceptances", {"alias": "twice"})):
        refused = http.post(other, json=body, headers=once)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/idempotency-conflict")
        assert made.json()["id"] in refused.json()["detail"]
    assert http.post(path, json={}, headers={"Idempotency-Key": "a b"}).json()["errors"][0]["field"] == (
        "/header/Idempotency-Key"
    )

    newer = http.post("/v1/catalogs", json={"jobs": [finished_job(served, rows=21)]}).json()["candidate"]["digest"]
    newest = http.post("/v1/catalogs", json={"jobs": [finished_job(served, rows=22)]}).json()["candidate"]["digest"]
    for one in (digest, newer, newest):
        accepted(served, one, alias="twice")
        assert http.put("/v1/aliases/twice", json={"digest": one}).status_code == 200
    for _ in range(2):
        back = http.post("/v1/aliases/twice/rollback", headers={"Idempotency-Key": "back-1"})
        assert back.json()["entries"][0]["digest"] == newer, "an answer that was lost costs no second step"
    again = http.post("/v1/aliases/twice/rollback", headers={"Idempotency-Key": "back-2"})
    assert again.json()["entries"][0]["digest"] == digest
    etag = http.get("/v1/aliases/twice").headers["etag"]
    promoted = http.put("/v1/aliases/twice", json={"digest": digest}, headers={"If-None-Match": etag})
    assert promoted.json()["entries"][0]["digest"] == digest, "only a GET is answered with 304"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/catalogs/{reference}/acceptances", {}, 409),
        ("/v1/catalogs/" + "f" * 64 + "/acceptances", {}, 404),
        ("/v1/catalogs/{candidate}/acceptances", {"rounds": 3}, 422),
        ("/v1/catalogs/{candidate}/acceptances", {"alias": "-"}, 422),
        ("/v1/catalogs/{candidate}/acceptances", {"cases": 3}, 422),
        ("/v1/aliases/nothing/rollback", None, 404),
    ],
)
def test_refusals_of_post(frozen: dict[str, Any], http: httpx.Client, path: str, body: Any, status: int) -> None:
    digests = {role: frozen[role]["digest"] for role in ("candidate", "reference")}
    response = http.post(path.format(**digests), json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("prod", {"digest": "{reference}"}, 409),
        ("prod", {"digest": "f" * 64}, 404),
        ("prod", {"digest": "f"}, 422),
        ("prod", {}, 422),
        ("prod", {"digest": "{candidate}", "force": True}, 422),
        ("Prod", {"digest": "{candidate}"}, 422),
    ],
)
def test_refusals_of_put(
    frozen: dict[str, Any], http: httpx.Client, name: str, body: dict[str, Any], status: int
) -> None:
    digests = {role: frozen[role]["digest"] for role in ("candidate", "reference")}
    filled = {key: value.format(**digests) if isinstance(value, str) else value for key, value in body.items()}
    assert http.put(f"/v1/aliases/{name}", json=filled).status_code == status


def test_a_library_is_served_by_its_sha256(served: Any, http: httpx.Client) -> None:
    sha256 = hashlib.sha256(b"code").hexdigest()
    served.context.runtime.libraries[sha256] = b"code"
    response = http.get(f"/v1/artifacts/{sha256}")
    assert (response.status_code, response.content) == (200, b"code")
    assert response.headers["content-type"] == "application/octet-stream"
    assert "immutable" in response.headers["cache-control"]
    assert http.get(f"/v1/artifacts/{sha256}", headers={"If-None-Match": f'"{sha256}"'}).status_code == 304
    assert http.get("/v1/artifacts/" + "0" * 64).status_code == 404


def test_a_process_pulls_and_opens_what_the_alias_names(
    frozen: dict[str, Any], served: Any, http: httpx.Client, tmp_path: Path
) -> None:
    digest = frozen["candidate"]["digest"]
    accepted(served, digest, alias="fleet")
    http.put("/v1/aliases/fleet", json={"digest": digest})
    source = f"http://127.0.0.1:{served.port}/v1/aliases/fleet"
    opened = catalogs.open(tmp_path / "store", source)
    assert opened.digest == digest
    answer = opened.lookup(
        kernel="softmax",
        dims={"rows": 4, "cols": 33},
        device=catalogs.this_device(),
        toolchain=catalogs.ANY_TOOLCHAIN,
    )
    assert isinstance(answer, catalogs.Hit)
    assert answer.entry.document() == http.get(f"/v1/catalogs/{digest}").json()["entries"][0]
    assert not catalogs.pull(source, str(tmp_path / "store")).changed

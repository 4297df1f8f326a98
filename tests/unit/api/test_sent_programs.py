"""Programs that came as documents: their winners are found by name, by document, in catalogs, and after an upgrade."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parent))

from finished_jobs import finished_job

from search.program.document import dump_program, parse_program
from search.program.library import kernels
from tuner_service.api.documented import PROGRAM_EXAMPLE
from tuner_service.db.queries import cases as case_queries


def program(name: str, scale: str = "1") -> dict[str, Any]:
    """The example program under another name; ``scale`` makes it compute something else."""
    document = copy.deepcopy(PROGRAM_EXAMPLE) | {"name": name}
    document["body"][-1]["store"]["value"] += f" * {scale}"
    return document


def by_name(http: httpx.Client, name: str, rows: int = 4, **query: Any) -> httpx.Response:
    return http.get("/v1/winners", params={"kernel": name, "dims": f"rows:{rows},cols:33", **query})


def by_document(http: httpx.Client, document: Any, rows: int = 4, **more: Any) -> httpx.Response:
    return http.post("/v1/winners", json={"program": document, "dims": {"rows": rows, "cols": 33}, **more})


def fields(response: httpx.Response) -> list[str]:
    assert response.status_code == 422, response.text
    return [error["field"] for error in response.json()["errors"]]


def test_the_winner_of_a_sent_program_is_found_by_name_and_by_document(served: Any) -> None:
    job_id = finished_job(served, program=program("mine"), params={"eps": 1e-3})
    named = by_name(served.http, "mine", params="eps:1e-3")
    assert named.status_code == 200, named.text
    assert (named.json()["job_id"], named.json()["kernel"]) == (job_id, "mine")
    # written otherwise, and computing the same
    rewritten = dump_program(parse_program(program("mine")))
    rewritten["body"][0]["reduce"]["into"] = "smallest"
    rewritten["body"][-1]["store"]["value"] = "((x-smallest)/(high-smallest+eps))*1"
    sent = by_document(served.http, rewritten, params={"eps": 1e-3}, device="cpu", toolchain="any")
    assert sent.json() == named.json()
    assert sent.headers["etag"] == named.headers["etag"]
    for miss in (by_name(served.http, "mine"), by_document(served.http, program("mine"))):
        assert miss.status_code == 404
        assert miss.json()["misses"][0]["differs"] == {"params.eps": [1e-6, 1e-3]}
    other = by_document(served.http, program("mine", "2"), params={"eps": 1e-3}).json()
    assert other["misses"][0]["differs"].keys() == {"program_digest"}
    body = {"kernel": "rms_norm", "dims": {"rows": 4, "cols": 33}}
    assert served.http.post("/v1/winners", json=body).json()["type"] == "/problems/no-winner"


def test_a_program_that_was_only_sent_is_a_miss_and_an_unknown_name_is_refused(served: Any) -> None:
    case = {"program": program("planned_only"), "dims": {"rows": 4, "cols": 33}}
    assert served.http.post("/v1/jobs", json={"cases": [case], "space": {"width": [8]}}).status_code == 202
    missed = by_name(served.http, "planned_only")
    assert (missed.status_code, missed.json()["misses"]) == (404, [])
    assert "planned_only" in missed.json()["reason"]
    assert fields(by_name(served.http, "never_sent")) == ["/query/kernel"]
    assert fields(by_name(served.http, "planned_only", params="epsilon:1")) == ["/query/params/epsilon"]


def test_two_programs_of_one_name_are_told_apart_by_digest(served: Any) -> None:
    jobs = [finished_job(served, program=program("twins", scale)) for scale in ("3", "5")]
    assert fields(by_name(served.http, "twins")) == ["/query/program_digest"]
    entries = [by_document(served.http, program("twins", scale)).json() for scale in ("3", "5")]
    assert [entry["job_id"] for entry in entries] == jobs
    for entry in entries:
        digest = entry["key"]["program_digest"]
        assert by_name(served.http, "twins", program_digest=digest).json() == entry
    unknown = by_name(served.http, "twins", program_digest="0" * 64)
    assert fields(unknown) == ["/query/program_digest"]
    assert sorted(unknown.json()["errors"][0]["allowed"]) == sorted(e["key"]["program_digest"] for e in entries)


def test_a_frozen_catalog_answers_for_a_sent_program(served: Any) -> None:
    document = program("frozen_mine")
    job_id = finished_job(served, program=document)
    frozen = served.http.post("/v1/catalogs", json={"jobs": [job_id]})
    assert frozen.status_code == 201, frozen.text
    digest = frozen.json()["candidate"]["digest"]
    found = by_name(served.http, "frozen_mine", catalog=digest)
    assert found.status_code == 200, found.text
    assert by_document(served.http, document, catalog=digest).json() == found.json()
    [row] = served.http.get(f"/v1/catalogs/{digest}").json()["kernels"]
    assert row["program"] == document
    assert by_name(served.http, "frozen_mine", rows=5, catalog=digest).status_code == 404
    assert fields(by_document(served.http, document, catalog="no such alias")) == ["/catalog"]


def test_a_sent_program_outlives_a_built_in_kernel_that_takes_its_name(served: Any) -> None:
    """As after an upgrade: the program was sent when nothing built in had the name."""
    job_id = finished_job(served, program=program("layer_norm_before", "7"))
    taken = program("layer_norm", "7")
    with served.context.database.write() as session:
        [case] = case_queries.case_rows(session, job_id)
        changed = {"kernel": "layer_norm", "document": {**case["document"], "kernel": "layer_norm", "program": taken}}
        case_queries.update_case(session, case["id"], changed)
    assert by_name(served.http, "layer_norm").status_code == 404, "the name is that of the built-in kernel now"
    near = by_name(served.http, "layer_norm", params="eps:1e-6").json()["misses"][0]
    assert near["job_id"] == job_id
    digest = near["differs"]["program_digest"][1]
    found = by_name(served.http, "layer_norm", program_digest=digest)
    assert (found.status_code, found.json()["job_id"]) == (200, job_id)
    frozen = served.http.post("/v1/catalogs", json={"jobs": [job_id]})
    assert frozen.status_code == 201, frozen.text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"colour": 1}, "/colour"),
        ({"device": 7}, "/device"),
        ({"device": "tpu"}, "/device"),
        ({"toolchain": "gcc"}, "/toolchain"),
        ({"toolchain": ["any"]}, "/toolchain"),
        ({"catalog": 3}, "/catalog"),
        ({"dims": {"rows": 4}}, "/dims/cols"),
        ({"params": {"epsilon": 1}}, "/params/epsilon"),
        ({"program": {"name": "x"}}, "/program/body"),
        ({"program": None}, "/kernel"),
        ({"program": dump_program(kernels()["softmax"].program) | {"name": "rms_norm"}}, "/program/name"),
    ],
)
def test_a_body_that_asks_nothing_is_refused(http: httpx.Client, changes: dict[str, Any], field: str) -> None:
    body = {"program": program("asked"), "dims": {"rows": 4, "cols": 33}, **changes}
    assert field in fields(http.post("/v1/winners", json=body))


def test_plan_job_trials_and_export_say_the_program(served: Any) -> None:
    document = program("everywhere", "9")
    job_id = finished_job(served, program=document)
    http = served.http
    case = {"program": document, "dims": {"rows": 4, "cols": 33}}
    plan = http.post("/v1/plans", json={"cases": [case], "space": {"width": [8]}}).json()
    assert plan["cases"][0]["kernel"] == "everywhere"
    assert plan["items"][0]["case"]["program"] == document
    [job] = http.get("/v1/jobs", params={"kernel": "everywhere"}).json()["items"]
    assert (job["id"], job["first_case"]["kernel"]) == (job_id, "everywhere")
    job = http.get(f"/v1/jobs/{job_id}").json()
    assert job["request"]["cases"][0]["program"] == document
    again = http.post("/v1/jobs", json=job["request"])
    assert again.status_code == 202, "a resolved request can be sent again"
    assert again.json()["request"] == job["request"]
    trials = http.get(f"/v1/jobs/{job_id}/trials", params={"kernel": "everywhere"}).json()["items"]
    assert {trial["case"]["kernel"] for trial in trials} == {"everywhere"}
    assert all(trial["case"]["program"] == document for trial in trials)
    lines = http.get(f"/v1/jobs/{job_id}/trials/export", params={"format": "jsonl"}).text.splitlines()
    assert len(lines) == len(trials)
    rows = http.get(f"/v1/jobs/{job_id}/trials/export", params={"format": "csv"}).text.splitlines()
    assert len(rows) == 1 + len(trials)
    assert all("everywhere" in row for row in rows[1:])


def test_the_schema_of_programs_is_published_with_an_example(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["Program"]["examples"] == [PROGRAM_EXAMPLE]
    for name in ("CaseRequest", "LookupRequest"):
        assert {"$ref": "#/components/schemas/Program"} in schemas[name]["properties"]["program"]["anyOf"]
    bodies = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert any("program" in case for example in bodies.values() for case in example["value"]["cases"])
    statements = schemas["Program_body"]["items"]["oneOf"]
    assert {one["title"] for one in statements} >= {"reducer", "update", "finalize", "reduce", "let", "tile", "store"}

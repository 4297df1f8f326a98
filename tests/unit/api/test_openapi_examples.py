"""Every example of the OpenAPI document runs as it stands: it succeeds, or its operation says why it cannot yet."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parent))

from finished_jobs import accepted, add_files, finished_job

STOPPING = ("/cancel", "/quarantine", "/release")
"""Ends of the paths that take away what other examples work with; the last one gives it back."""
METHODS = ("get", "put", "post", "delete", "patch")
NOT_YET = re.compile(r"\*\*Not yet:\*\* .* answers? (\d{3})\b")
QUEUED = {"cases": [{"kernel": "softmax", "dims": {"rows": 2, "cols": 8}}], "space": {"width": [8]}}


def nothing(served: Any) -> None:
    """A service that was just started."""


def queued(served: Any) -> None:
    """One job, of which nothing is known yet."""
    assert served.http.post("/v1/jobs", json=QUEUED).status_code == 202


def finished(served: Any) -> None:
    """Two jobs that succeeded, and the newest one queued."""
    add_files(served, finished_job(served, kernel="rms_norm"))
    add_files(served, finished_job(served, rows=5))
    queued(served)


def frozen(served: Any) -> str:
    """Finished jobs and a catalog of one of them."""
    job = finished_job(served)
    add_files(served, job)
    response = served.http.post("/v1/catalogs", json={"jobs": [job]})
    assert response.status_code == 201, response.text
    return str(response.json()["candidate"]["digest"])


def replayed(served: Any) -> None:
    """A catalog that was accepted and that no alias names."""
    accepted(served, frozen(served))


def promoted(served: Any) -> None:
    """A bit of everything: two promotions, and a job and a replay that are not over."""
    digest = frozen(served)
    accepted(served, digest)
    assert served.http.put("/v1/aliases/prod", json={"digest": digest}).status_code == 200
    job = finished_job(served, rows=9)
    add_files(served, job)
    other = served.http.post("/v1/catalogs", json={"jobs": [job]}).json()["candidate"]["digest"]
    accepted(served, other)
    assert served.http.put("/v1/aliases/prod", json={"digest": other}).status_code == 200
    assert served.http.post(f"/v1/catalogs/{other}/acceptances").status_code == 202
    queued(served)


FURNISHED = (nothing, queued, finished, frozen, replayed, promoted)
CATALOG_PATHS = {
    "post /v1/catalogs",
    "get /v1/catalogs/{digest}",
    "post /v1/catalogs/{digest}/acceptances",
    "get /v1/acceptances/{acceptance_id}",
    "get /v1/acceptances/{acceptance_id}/evidence",
    "post /v1/acceptances/{acceptance_id}/cancel",
    "get /v1/aliases/{name}",
    "put /v1/aliases/{name}",
    "post /v1/aliases/{name}/rollback",
}
JOB_PATHS = {
    f"get /v1/jobs/{{job_id}}{rest}" for rest in ("", "/cases/{case_index}", "/events", "/trials", "/trials/export")
}
TRIAL_PATHS = {f"get /v1/trials/{{trial_id}}{rest}" for rest in ("", "/source")}
WINNER_PATHS = {"get /v1/winners", "post /v1/winners", "get /v1/artifacts/{sha256}"}
NO_WORKER = {"post /v1/workers/{worker_id}/forget"}
CANCEL = {"post /v1/jobs/{job_id}/cancel"}
CANCEL_REPLAY = {"post /v1/acceptances/{acceptance_id}/cancel"}
ROLLBACK = {"post /v1/aliases/{name}/rollback"}
PROMOTE = {"put /v1/aliases/{name}"}
READ_ALIAS = {"get /v1/aliases/{name}"}
NOT_YET_THERE = {
    "nothing": CATALOG_PATHS | JOB_PATHS | TRIAL_PATHS | WINNER_PATHS | CANCEL,
    "queued": CATALOG_PATHS | TRIAL_PATHS | WINNER_PATHS,
    "finished": CATALOG_PATHS - {"post /v1/catalogs"},
    "frozen": CATALOG_PATHS
    - {"post /v1/catalogs", "get /v1/catalogs/{digest}", "post /v1/catalogs/{digest}/acceptances"}
    | CANCEL,
    "replayed": READ_ALIAS | ROLLBACK | CANCEL | CANCEL_REPLAY,
    "promoted": set(),
}


@pytest.mark.parametrize("furnish", FURNISHED, ids=lambda furnish: furnish.__name__)
def test_every_example_succeeds_or_is_said_not_to(furnish: Any, serve: Any, tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        furnish(served)
        document = served.http.get("/openapi.json").json()
        calls = [
            (f"{method} {path}", item[method])
            for path, item in document["paths"].items()
            for method in METHODS
            if method in item
        ]
        not_yet = {name for name, operation in calls if NOT_YET.search(operation["description"])}
        # What is not there yet is asked for before others make it; cancelling comes last, of what others read.
        for name, operation in sorted(calls, key=lambda call: (call[0] not in not_yet, call[0].endswith(STOPPING))):
            for body in bodies(operation):
                check(served.http, name, operation, body)
    assert not_yet == NOT_YET_THERE[furnish.__name__] | NO_WORKER


def check(http: httpx.Client, name: str, operation: dict[str, Any], body: Any) -> None:
    """Runs one example. Without a word about it in the description, it must succeed."""
    method, path = name.split()
    query: dict[str, Any] = {}
    for parameter in operation.get("parameters", ()):
        if "example" in parameter and parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", str(parameter["example"]))
        elif "example" in parameter and parameter["in"] == "query":
            query[parameter["name"]] = parameter["example"]
    assert "{" not in path
    expected = NOT_YET.search(operation["description"])
    with http.stream(method, path, params=query, json=body) as response:
        assert str(response.status_code) in operation["responses"], (name, response.status_code)
        if not (path.endswith("/events") and response.is_success):  # open until the job ends
            response.read()
        if expected:
            assert response.status_code == int(expected[1]), (name, response.text)
        else:
            assert response.is_success, (name, path, query, response.text)


def bodies(operation: dict[str, Any]) -> list[Any]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return [None] if content is None else [example["value"] for example in content["examples"].values()]


def test_examples_name_the_newest(serve: Any, tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        promoted(served)
        document, http = served.http.get("/openapi.json").json(), served.http
        jobs, catalogs = http.get("/v1/jobs").json()["items"], http.get("/v1/catalogs?role=candidate").json()["items"]
        device = http.get("/v1/devices").json()["items"][0]["id"]
    examples = {
        f"{method} {path}": {p["name"]: p["example"] for p in item[method].get("parameters", ()) if "example" in p}
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    }
    assert examples["get /v1/devices/{device_id}"] == {"device_id": device}
    assert examples["get /v1/jobs/{job_id}"] == {"job_id": jobs[0]["id"]}
    assert examples["get /v1/catalogs/{digest}"] == {"digest": catalogs[0]["digest"]}
    assert examples["get /v1/kernels/{name}"]["name"] != examples["get /v1/aliases/{name}"]["name"] == "prod"
    assert examples["get /v1/winners"]["dims"] == "rows:9,cols:33"
    freeze = document["paths"]["/v1/catalogs"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert freeze["one job"]["value"] == {"jobs": [jobs[1]["id"]]}, "the newest that has succeeded"

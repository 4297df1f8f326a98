"""The OpenAPI document is complete, and every example in it runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tuner_service.api.kinds import KINDS
from tuner_service.api.openapi import operations

METHODS = ("get", "put", "post", "delete", "patch")


@pytest.fixture(scope="module")
def document(served: Any) -> dict[str, Any]:
    # A job first: its id is then the example wherever a job is asked for.
    response = served.http.post(
        "/v1/jobs", json={"cases": [{"kernel": "softmax", "dims": {"rows": 2, "cols": 8}}], "space": {"width": [8]}}
    )
    assert response.status_code == 202
    found: dict[str, Any] = served.http.get("/openapi.json").json()
    return found


def test_every_operation_says_what_it_does_and_how_it_fails(document: dict[str, Any]) -> None:
    assert len(operations(document)) >= 17
    for operation in operations(document):
        name = operation["operationId"]
        assert operation["summary"], name
        assert operation["description"], name
        assert operation["tags"], name
        assert {"400", "403", "421", "500"} <= set(operation["responses"]), name
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (name, parameter["name"])
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
            if int(status) >= 400 and "application/json" not in response.get("content", {}):
                content = response["content"]["application/problem+json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert set(content["examples"]) <= set(KINDS)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for path in set(re.findall(r"'\$ref': '#/([^']+)'", str(document))):
        node: Any = document
        for part in path.split("/"):
            assert part in node, path
            node = node[part]


def test_no_form_of_the_framework_is_left(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in str(document)


def test_the_reference_page_lists_every_operation(document: dict[str, Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    for path in document["paths"]:
        assert path in page or path == "/problems/{slug}", path


def test_examples_name_what_exists(document: dict[str, Any], http: httpx.Client) -> None:
    newest = http.get("/v1/jobs?limit=1").json()["items"][0]["id"]
    examples = {
        parameter["name"]: parameter.get("example")
        for operation in operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "path"
    }
    assert examples["job_id"] == newest
    assert examples["device_id"] == http.get("/v1/devices").json()["items"][0]["id"]
    assert all(examples.values())


def test_every_request_example_runs(document: dict[str, Any], served: Any) -> None:
    ran = 0
    for path, item in document["paths"].items():
        for method in METHODS:
            if method not in item or path.endswith("/cancel"):
                continue  # cancelling last, below: the other examples are about the same job
            for body in bodies(item[method]):
                check(served.http, method, path, item[method], body)
                ran += 1
    for path, item in document["paths"].items():
        if path.endswith("/cancel"):
            check(served.http, "post", path, item["post"], None)
            ran += 1
    assert ran >= 20


def bodies(operation: dict[str, Any]) -> list[Any]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return [None] if content is None else [example["value"] for example in content["examples"].values()]


def check(http: httpx.Client, method: str, path: str, operation: dict[str, Any], body: Any) -> None:
    query: dict[str, Any] = {}
    for parameter in operation.get("parameters", ()):
        if "example" in parameter and parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", str(parameter["example"]))
        elif "example" in parameter and parameter["in"] == "query":
            query[parameter["name"]] = parameter["example"]
    with http.stream(method, path, params=query, json=body) as response:
        status = str(response.status_code)
        assert status in operation["responses"], (path, status)
        if path.endswith("/events"):
            assert status == "200"  # open until the job ends; its beginning is enough here
            return
        response.read()
    # Nothing runs jobs here: there is no winner, no trial is built yet, and nothing is frozen.
    frozen = ("/v1/winners", "/v1/catalogs", "/v1/acceptances", "/v1/aliases", "/v1/artifacts")
    if not path.startswith(frozen) and "/trials/" not in path:
        assert response.is_success, (path, response.text)
    elif response.is_error:
        known = ("no-winner", "not-found", "invalid-request" if path == "/v1/catalogs" else "not-found")
        assert response.json()["type"].removeprefix("/problems/") in known, (path, response.text)


@pytest.mark.parametrize("slug", KINDS)
def test_every_kind_is_documented_somewhere(document: dict[str, Any], slug: str) -> None:
    assert f"/problems/{slug}" in str(document)

"""The OpenAPI document is complete, and every example in it runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tuner_service.api.kinds import KINDS
from tuner_service.api.openapi import operations


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


@pytest.mark.parametrize("slug", KINDS)
def test_every_kind_is_documented_somewhere(document: dict[str, Any], slug: str) -> None:
    assert f"/problems/{slug}" in str(document)

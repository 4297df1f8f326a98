"""Every bad input answers 422 with field, value and what is allowed, and creates nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

GOOD: dict[str, Any] = {
    "cases": [{"kernel": "rms_norm", "dims": {"rows": 4, "cols": 33}}],
    "device": "cpu",
    "space": {"width": [8, 16]},
}


def body(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    changed = copy.deepcopy(GOOD)
    change(changed)
    return changed


def case(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda request: request["cases"][0].update(members)


def dims(**sizes: Any) -> Callable[[dict[str, Any]], None]:
    return case(dims=sizes)


def top(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda request: request.update(members)


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown kernel": (case(kernel="no_such_kernel"), "/cases/0/kernel"),
    "kernel is a path": (case(kernel="../../etc/passwd"), "/cases/0/kernel"),
    "unknown device": (top(device="tpu"), "/device"),
    "device is a number": (top(device=7), "/device"),
    "unknown knob": (top(space={"widht": [8]}), "/space/widht"),
    "knob of another target": (top(space={"rows_per_block": [1]}), "/space/rows_per_block"),
    "unknown baseline": (top(baselines=["jax"]), "/baselines/0"),
    "baselines is text": (top(baselines="torch_eager"), "/baselines"),
    "dim missing": (dims(rows=4), "/cases/0/dims/cols"),
    "dims missing": (lambda request: request["cases"][0].pop("dims"), "/cases/0/dims/rows"),
    "dim zero": (dims(rows=0, cols=33), "/cases/0/dims/rows"),
    "dim negative": (dims(rows=-1, cols=33), "/cases/0/dims/rows"),
    "dim fraction": (dims(rows=4.5, cols=33), "/cases/0/dims/rows"),
    "dim whole float": (dims(rows=4.0, cols=33), "/cases/0/dims/rows"),
    "dim true": (dims(rows=True, cols=33), "/cases/0/dims/rows"),
    "dim text": (dims(rows="4", cols=33), "/cases/0/dims/rows"),
    "dim null": (dims(rows=None, cols=33), "/cases/0/dims/rows"),
    "dim too large": (dims(rows=2**40, cols=33), "/cases/0/dims/rows"),
    "too large for memory": (dims(rows=2**22, cols=2**22), "/cases/0/dims"),
    "unknown dim": (dims(rows=4, cols=33, depth=2), "/cases/0/dims/depth"),
    "unsupported dtype": (case(dtypes={"x": "float64"}), "/cases/0/dtypes/x"),
    "dtype of no tensor": (case(dtypes={"z": "float32"}), "/cases/0/dtypes/z"),
    "unknown param": (case(params={"epsilon": 1e-6}), "/cases/0/params/epsilon"),
    "param is text": (case(params={"eps": "small"}), "/cases/0/params/eps"),
    "unknown key in a case": (case(shape=[4, 33]), "/cases/0/shape"),
    "knob empty": (top(space={"width": []}), "/space/width"),
    "knob duplicate": (top(space={"width": [8, 8]}), "/space/width/1"),
    "knob fraction": (top(space={"width": [8.5]}), "/space/width/0"),
    "knob text": (top(space={"width": ["8"]}), "/space/width/0"),
    "knob true": (top(space={"width": [True]}), "/space/width/0"),
    "knob is no list": (top(space={"width": 8}), "/space/width"),
    "width no power of two": (top(space={"width": [24]}), "/space/width/0"),
    "width too large": (top(space={"width": [2048]}), "/space/width/0"),
    "space is a list": (top(space=[8]), "/space"),
    "budget negative": (top(private_budget_scalars=-1), "/private_budget_scalars"),
    "budget fraction": (top(private_budget_scalars=1.5), "/private_budget_scalars"),
    "unknown protocol": (top(protocol="quick"), "/protocol"),
    "labels is a list": (top(labels=["a"]), "/labels"),
    "label is a number": (top(labels={"a": 1}), "/labels/a"),
    "cases missing": (lambda request: request.pop("cases"), "/cases"),
    "cases empty": (top(cases=[]), "/cases"),
    "case is text": (top(cases=["rms_norm"]), "/cases/0"),
    "too many cases": (top(cases=GOOD["cases"] * 65), "/cases"),
    "unknown key": (top(devise="cpu"), "/devise"),
    "more than 20,000 candidates": (
        top(
            space={
                "width": [1, 2, 4, 8, 16, 32, 64, 128],
                "vector": [1, 2, 4, 8],
                "unroll": list(range(1, 17)),
                "partials": [1, 2, 4, 8],
                "row_block": [1, 2, 4],
                "local_lanes": [1, "width"],
            }
        ),
        "/space",
    ),
    "program is no object": (case(program="x + 1", kernel=None), "/cases/0/program"),
}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plans"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named_with_what_is_allowed(served: Any, name: str, path: str) -> None:
    change, field = BAD[name]
    before = served.job_count()
    response = served.http.post(path, json=body(change))
    check_problem(response, status=422, slug="invalid-request")
    errors = response.json()["errors"]
    assert field in [error["field"] for error in errors], errors
    assert all(error["message"] and error["allowed"] is not None for error in errors), errors
    assert served.job_count() == before


def test_every_fault_is_told_at_once(http: httpx.Client) -> None:
    wrong = {
        "cases": [{"kernel": "rms_norm", "dims": {"rows": 0, "cols": -1}}, {"kernel": "nope", "dims": {}}],
        "device": "tpu",
        "space": {"width": [3], "knob": [1]},
        "private_budget_scalars": -5,
        "baselines": ["jax"],
        "extra": 1,
    }
    fields = {error["field"] for error in http.post("/v1/jobs", json=wrong).json()["errors"]}
    assert fields >= {
        "/cases/0/dims/rows",
        "/cases/0/dims/cols",
        "/cases/1/kernel",
        "/device",
        "/space/width/0",
        "/space/knob",
        "/private_budget_scalars",
        "/baselines/0",
        "/extra",
    }


RAW: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ""),
    "spaces": (b"  \n", ""),
    "no JSON": (b"width=8", ""),
    "cut off": (b'{"cases": [', ""),
    "a list": (b"[]", ""),
    "a number": (b"1" * 5000, ""),
    "null": (b"null", ""),
    "not UTF-8": (b'{"device": "\xff"}', ""),
    "a byte order mark": (b"\xef\xbb\xbf{}", ""),
    "NaN": (b'{"private_budget_scalars": NaN}', "/private_budget_scalars"),
    "infinity": (b'{"space": {"width": [8, -Infinity]}}', "/space/width/1"),
    "overflow to infinity": (b'{"cases": [{"params": {"eps": 1e999}}]}', "/cases/0/params/eps"),
    "huge integer": (b'{"private_budget_scalars": ' + b"9" * 100_000 + b"}", "/private_budget_scalars"),
    "repeated name": (b'{"device": "cpu", "device": "tpu"}', "/device"),
    "NUL": (b'{"device": "cpu\\u0000"}', "/device"),
    "NUL in a name": (b'{"labels": {"a\\u0000": "b"}}', "/labels/a\\u0000"),
    "half a surrogate pair": (b'{"labels": {"a": "\\ud800"}}', "/labels/a"),
    "deep arrays": (b"[" * 100_000, ""),
    "deep objects": (b'{"a":' * 100_000, ""),
    "deep but small": (b'{"space": ' + b"[" * 70 + b"]" * 70 + b"}", ""),
}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plans"])
@pytest.mark.parametrize("name", RAW)
def test_a_body_that_is_not_strict_json_is_refused(served: Any, name: str, path: str) -> None:
    raw, field = RAW[name]
    before = served.job_count()
    response = served.http.post(path, content=raw, headers={"Content-Type": "application/json"})
    check_problem(response, status=422, slug="invalid-request")
    assert [error["field"] for error in response.json()["errors"]] == [field]
    assert served.job_count() == before


def test_refused_values_are_repeated_shortened(http: httpx.Client) -> None:
    response = http.post("/v1/jobs", json=body(top(device="x" * 100_000)))
    assert len(response.content) < 5000
    assert response.json()["errors"][0]["value"].startswith("xxx")


def test_many_faults_are_cut_off(http: httpx.Client) -> None:
    many = body(top(**{f"key{n}": n for n in range(500)}))
    assert len(http.post("/v1/jobs", json=many).json()["errors"]) <= 50


def check_problem(response: httpx.Response, *, status: int, slug: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = json.loads(response.content)
    assert problem["status"] == status
    assert problem["type"] == f"/problems/{slug}"
    assert problem["title"]
    assert problem["detail"]
    assert problem["instance"] == f"urn:tuner:{response.headers['x-request-id']}"

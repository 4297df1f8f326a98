"""Dtypes over HTTP: chosen by case, echoed resolved, counted in bytes, refused by name."""

from __future__ import annotations

from typing import Any

SPACE = {"width": [32], "input": ["reload"], "simd_scope": ["none"], "nontemporal": [False]}


def plans(served: Any, dtypes: dict[str, str], **space: Any) -> Any:
    case = {"kernel": "softmax", "dims": {"rows": 64, "cols": 256}, "dtypes": dtypes}
    return served.http.post("/v1/plans", json={"cases": [case], "space": SPACE | space, "baselines": []})


def planned(response: Any) -> list[Any]:
    """The items of the space; the untuned default is planned beside it."""
    return [item for item in response.json()["items"] if item["in_space"]]


def test_a_plan_of_16_bits_reads_half_the_bytes_and_stages_no_tile(served: Any) -> None:
    (wide,), (narrow,) = (
        planned(plans(served, {"x": dtype}, materialize=["recompute"])) for dtype in ("float32", "bfloat16")
    )
    assert narrow["case"]["dtypes"] == {"x": "bfloat16", "y": "bfloat16"}
    for figure in ("global_read_bytes", "global_write_bytes"):
        bytes_of = [item["plan"]["demand"]["per_program"][figure] for item in (wide, narrow)]
        assert bytes_of[0] == 2 * bytes_of[1] > 0
    outcomes = {item["candidate"]["materialize"]: item["reason"] for item in planned(plans(served, {"x": "float16"}))}
    assert outcomes == {"private": None, "output": "no_output_staging", "recompute": None}


def test_a_job_of_several_dtypes_has_one_space_that_resolves_to_itself(served: Any) -> None:
    dims = {"rows": 4, "cols": 64}
    cases = [{"kernel": "softmax", "dims": dims, "dtypes": {"x": dtype}} for dtype in ("float32", "float16")]
    response = served.http.post("/v1/jobs", json={"cases": cases, "baselines": []})
    assert response.status_code == 202, response.text
    request = response.json()["request"]
    assert [case["dtypes"]["y"] for case in request["cases"]] == ["float32", "float16"]
    assert request["space"]["materialize"] == ["private", "output", "recompute"]
    again = served.http.post("/v1/jobs", json=request)
    assert again.status_code == 202, again.text
    assert again.json()["request"] == request


def test_what_a_tensor_cannot_be_is_refused_with_what_it_can(served: Any) -> None:
    for dtype in ("int32", "float64"):
        response = plans(served, {"x": dtype})
        assert response.status_code == 422, response.text
        (error,) = response.json()["errors"]
        assert (error["field"], error["value"]) == ("/cases/0/dtypes/x", dtype)
        assert error["allowed"] == ["float32", "float16", "bfloat16"]

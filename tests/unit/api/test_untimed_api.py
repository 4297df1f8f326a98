"""Compile-only devices over HTTP: listed, looked at when asked for, refused with reasons, never meant by silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from search.device.probe import COMPILE_ONLY_DEVICES, compile_only

CASES = [{"kernel": "softmax", "dims": {"rows": 17, "cols": 65}}]
SPACE = {"width": [32], "rows_per_block": [1], "vector": [1]}


@pytest.fixture(autouse=True)
def attached(served: Any) -> Iterator[None]:
    """sm_90 can be built for, sm_80 and sm_100 cannot."""
    known = served.context.runtime.known
    for name in COMPILE_ONLY_DEVICES:
        missing = None if name == "cuda-sm_90" else "nvcc does not know it"
        known[name] = compile_only(name, toolchain={"nvcc": "13"}, unavailable=missing)
    yield
    for name in COMPILE_ONLY_DEVICES:
        del known[name]


def body(**changes: Any) -> dict[str, Any]:
    return {"cases": CASES, "device": "cuda-sm_90", "space": SPACE, **changes}


def refused(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    answer = http.post("/v1/jobs", json=body(**changes))
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    return dict(error)


def test_devices_are_looked_at_and_listed_with_what_they_are_and_why_not(served: Any, http: httpx.Client) -> None:
    found = {device["id"]: device for device in http.get("/v1/devices").json()["items"]}
    assert served.context.runtime.looked[-1] is None
    assert set(found) >= set(COMPILE_ONLY_DEVICES)
    usable = found["cuda-sm_90"]
    assert (usable["available"], usable["timed"], usable["architecture"]) == (True, False, "sm_90")
    assert found["cuda-sm_80"]["reason"] == "nvcc does not know it"
    assert [device["timed"] for device in found.values() if device["target"] == "cpu"] == [True]
    http.get("/v1/devices/cuda-sm_100")
    assert served.context.runtime.looked[-1] == "cuda-sm_100"


def test_nothing_waits_for_a_look_that_goes_on_but_a_job_that_needs_it_says_so(served: Any, http: httpx.Client) -> None:
    served.context.runtime.looking = True
    try:
        assert http.get("/v1/devices").json()["probing"] is True
        assert http.get("/v1/devices/cuda-sm_90").status_code == 200
        answer = http.post("/v1/jobs", json=body())
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
        assert "cuda-sm_90 is being looked at" in answer.json()["detail"]
        assert http.post("/v1/plans", json=body()).status_code == 200, "a plan needs no compiler"
    finally:
        served.context.runtime.looking = False
    assert http.get("/v1/devices").json()["probing"] is False


def test_a_job_on_one_has_no_baselines_and_counts_what_is_checked(served: Any, http: httpx.Client) -> None:
    answer = http.post("/v1/jobs", json=body())
    assert answer.status_code == 202, answer.text
    assert served.context.runtime.looked[-1] == "cuda-sm_90"
    job = answer.json()
    assert job["request"]["baselines"] == []
    assert job["progress"]["checked"] == 0
    assert job["cases"][0]["untimed"] is None, "the case has no result yet"
    frozen = http.post("/v1/catalogs", json={"jobs": [job["id"]]})
    assert frozen.status_code == 409


def test_a_wish_for_a_baseline_is_refused_by_name(http: httpx.Client) -> None:
    error = refused(http, baselines=["torch_eager"])
    assert (error["field"], error["allowed"]) == ("/baselines", [])


@pytest.mark.parametrize("device", ["cuda-sm_123", "cuda-sm_80"])
def test_an_architecture_that_cannot_be_built_for_is_refused_with_what_can(http: httpx.Client, device: str) -> None:
    error = refused(http, device=device)
    assert (error["field"], error["value"]) == ("/device", device)
    assert "cuda-sm_90" in error["allowed"]


def test_a_plan_has_the_knobs_of_the_target(http: httpx.Client) -> None:
    plan = http.post("/v1/plans", json=body(space={**SPACE, "width": [32, 1024], "rows_per_block": [1, 4]})).json()
    rejected = [item for item in plan["items"] if item["outcome"] == "rejected"]
    assert all(item["candidate"]["mapping"].keys() == {"rows_per_block", "min_blocks"} for item in plan["items"])
    assert {item["stage"] for item in rejected} == {"constraints"}
    assert all(item["candidate"]["width"] == 1024 for item in rejected)


def test_a_lookup_that_names_no_device_means_the_one_with_times(http: httpx.Client) -> None:
    missed = http.get("/v1/winners", params={"kernel": "softmax", "dims": "rows:17,cols:65"})
    assert missed.status_code == 404, missed.text
    assert missed.json()["type"].endswith("no-winner")


def test_trials_are_asked_for_by_what_their_code_takes(http: httpx.Client) -> None:
    job = http.post("/v1/jobs", json=body()).json()
    where = f"/v1/jobs/{job['id']}/trials"
    for query in ({"outcome": "checked"}, {"spills": "true"}, {"max_registers": 64}, {"sort": "-spill_bytes"}):
        assert http.get(where, params=query).status_code == 200, query
    for query, field in (({"spills": "perhaps"}, "spills"), ({"max_registers": -1}, "max_registers")):
        answer = http.get(where, params=query)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == f"/query/{field}"

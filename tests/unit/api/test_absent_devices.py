"""Devices that are not there: plans need none, jobs wait for one that was attached once, nobody waits for a myth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from search.device.probe import COMPILE_ONLY_DEVICES, probe_cpu

CASES = [{"kernel": "softmax", "dims": {"rows": 17, "cols": 65}}]
GPU = replace(
    probe_cpu(toolchain={"compiler": "none"}, unavailable="no worker offers it; attach it with tuner worker"),
    id="nvidia-h200:0123456789ab",
    kind="nvidia-h200",
    target="cuda",
)
WHERE_NOTHING_IS = ["cpu", *COMPILE_ONLY_DEVICES, GPU.kind, GPU.id]


@pytest.fixture(autouse=True)
def nothing_attached(served: Any) -> Iterator[None]:
    """As a scaled-out service without workers, which remembers a GPU."""
    runtime = served.context.runtime
    attached, runtime.known = runtime.known, {GPU.id: GPU}
    runtime.remembered = {GPU.id: GPU}
    yield
    runtime.known, runtime.remembered = attached, {}


def post(http: httpx.Client, path: str, device: str) -> httpx.Response:
    return http.post(path, json={"cases": CASES, "device": device, "space": {"width": [32]}})


@pytest.mark.parametrize("device", WHERE_NOTHING_IS)
def test_a_plan_needs_no_device(http: httpx.Client, device: str) -> None:
    answer = post(http, "/v1/plans", device)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert plan["request"]["device"] == device
    assert plan["cases"][0]["planned"] >= 1
    mapping = plan["items"][0]["candidate"]["mapping"]
    assert ("rows_per_block" in mapping) == (device != "cpu"), "the knobs are the target's"


@pytest.mark.parametrize("device", [GPU.kind, GPU.id])
def test_a_job_for_what_was_attached_once_is_taken_and_says_what_it_waits_for(
    served: Any, http: httpx.Client, device: str
) -> None:
    answer = post(http, "/v1/jobs", device)
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["state"], job["device"]["id"]) == ("queued", GPU.id)
    assert job["waiting"] == f"device {GPU.id} is unavailable: {GPU.reason}"
    assert http.get(f"/v1/jobs/{job['id']}").json()["waiting"] == job["waiting"]
    (listed,) = [one for one in http.get("/v1/jobs").json()["items"] if one["id"] == job["id"]]
    assert listed["waiting"] == job["waiting"]
    served.context.runtime.known = {GPU.id: replace(GPU, available=True, reason=None)}
    assert http.get(f"/v1/jobs/{job['id']}").json()["waiting"] is None
    http.post(f"/v1/jobs/{job['id']}/cancel")


@pytest.mark.parametrize("device", ["tpu", "cpu", "cuda-sm_90"])
def test_a_job_for_what_was_never_attached_is_refused_with_what_was(http: httpx.Client, device: str) -> None:
    answer = post(http, "/v1/jobs", device)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["field"], error["allowed"]) == ("/device", [GPU.kind, GPU.id])
    assert "was ever attached" in error["message"]


def test_a_plan_for_nothing_known_names_what_is(http: httpx.Client) -> None:
    (error,) = post(http, "/v1/plans", "tpu").json()["errors"]
    assert error["allowed"] == sorted({*COMPILE_ONLY_DEVICES, "cpu", GPU.kind, GPU.id})

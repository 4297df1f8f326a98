"""A service beside an installed package with a kernel, and beside a broken one: tuned, built, timed in the children."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from tuner_service.cli.launch import PrivateService

pytestmark = pytest.mark.toolchain

HALVED = """
from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

print("a package may print")
KERNEL = define(
    {
        "name": "halved",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [{"store": {"tensor": "y", "over": ["col"], "value": "0.5 * x"}}],
    },
    summary="y = x / 2",
    baseline=(TorchCall(function="torch.mul", keywords={"input": "$x", "other": 0.5}, into="y", out="out"),),
)
"""
JOB = {
    "cases": [{"kernel": "halved", "dims": {"rows": 5, "cols": 40}}],
    "space": {"width": [8], "simd_scope": ["all"], "nontemporal": [False]},
}


def install(folder: Path, name: str, source: str) -> None:
    """A distribution as an installer leaves it."""
    (folder / f"{name}_kernels.py").write_text(source)
    info = folder / f"{name}-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[tuner.kernels]\nmine = {name}_kernels:KERNEL\n")


def test_a_kernel_of_a_package_is_tuned_and_a_broken_package_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site"
    packages.mkdir()
    install(packages, "halving", HALVED)
    install(packages, "broken", "raise RuntimeError('no licence')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")])))
    with PrivateService(tmp_path / "data") as service, httpx.Client(base_url=service.url, timeout=60) as http:
        ready = http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["packages"] == [
            "broken 0.3, entry point 'mine': broken_kernels:KERNEL cannot be loaded: RuntimeError: no licence"
        ]
        assert http.get("/v1/kernels/halved").json()["package"] == "halving 0.3"
        assert http.get("/v1/kernels/softmax").json()["package"] is None
        job = http.post("/v1/jobs", json=JOB)
        assert job.status_code == 202, job.text
        with http.stream("GET", f"/v1/jobs/{job.json()['id']}/events") as events:
            for _ in events.iter_lines():
                pass
        done = http.get(f"/v1/jobs/{job.json()['id']}").json()
        assert done["state"] == "succeeded", done["error"]
        (case,) = done["cases"]
        assert case["winner"]["checks"]["passed"]
        assert {"partials", "materialize", "input", "fusion"} <= set(case["inert_knobs"])
        assert case["baselines"]["torch_eager"]["implementation"] == "torch.mul(input=$x, other=0.5, out=$y)"
        assert case["baselines"]["torch_eager"]["ratio"]["median"] > 0
    lines = [json.loads(line) for line in (tmp_path / "data" / "service.log").read_text().splitlines()]
    assert any(line["level"] == "WARNING" and "no licence" in line["message"] for line in lines)

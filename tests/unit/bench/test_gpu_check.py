"""The script for a borrowed GPU: what it does without one, and its whole way with a rehearsed driver."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from search.lowering.contract import Argument, Artifact, BuildRequest, BuildResult, Launch
from search.measuring.gpu.rehearsed import rehearsed
from search.outcome import Rejected

SCRIPT = Path(__file__).parents[3] / "bench" / "gpu_check.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_without_a_gpu_it_says_so_and_exits_3(tmp_path: Path) -> None:
    if any(Path(file).exists() for file in ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")):
        pytest.skip("there is a driver here")
    command = [sys.executable, str(SCRIPT), "--work-dir", str(tmp_path), "--output", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "no GPU to measure on: no NVIDIA driver is loaded on this machine\n")
    assert not (tmp_path / "out.json").exists()


def test_the_seeds_cases_have_candidates_enough(bench: Any) -> None:
    checked = list(bench.plan(bench.SHAPES, bench.KERNELS, bench.SPACE))
    assert len(checked) == 12
    admitted = sum(1 for one in checked for planned in one.planned if planned.rejection is None)
    assert admitted >= bench.ENOUGH
    assert all(sum(planned.is_default for planned in one.planned) == 1 for one in checked)


def test_a_dry_run_goes_all_the_way_and_measures_nothing(bench: Any, tmp_path: Path) -> None:
    space = {"width": [32, 64], "input": ["reload", "cache"], "materialize": ["private"], "vector": [1]}
    checked = list(bench.plan(["5x65"], ["rms_norm"], {**space, "rows_per_block": [1]}))
    script = {"faults": {"k_3": "CUDA_ERROR_ILLEGAL_ADDRESS"}, "seconds_per_call": {"k_1": 4e-5, "k_0": 8e-5}}

    def build(requests: Sequence[BuildRequest]) -> Iterator[BuildResult]:
        cubin = tmp_path / "batch.cubin"
        cubin.write_text(" ".join(f"k_{place}" for place in range(9)))
        for place, request in enumerate(requests):
            if place == 2:
                yield BuildResult(id=request.id, rejection=Rejected(stage="compile", reason="compiler_error"))
                continue
            names = ("rows", "weight", "x", "y")
            artifact = Artifact(
                source_sha256=str(place),
                artifact_sha256=str(place),
                library_path=str(cubin),
                library_sha256=hashlib.sha256(cubin.read_bytes()).hexdigest(),
                symbol=f"k_{place}",
                arguments=tuple(Argument(name=n, kind="dim" if n == "rows" else "tensor") for n in names),
                launch=Launch(threads_per_block=32, rows_per_block=1, dynamic_shared_bytes=0),
                architecture="sm_90",
            )
            yield BuildResult(id=request.id, artifact=artifact)

    found = bench.run(
        checked,
        bench.rehearsal_device("sm_90"),
        tmp_path,
        build=build,
        children=(rehearsed(script), rehearsed(script, cache_context="cold")),
        baselines=("torch_eager",),
        say=lambda line: None,
    )
    json.dumps(found, allow_nan=False)
    assert found["measured"] is False
    (case,) = found["cases"]
    assert case["error"] is None
    assert case["enumerated"] == 5  # the default is not in this space
    assert {trial.rsplit("-")[-1]: one["reason"] for trial, one in case["rejected"].items()} == {
        "2": "compiler_error",
        "3": "device_fault",
    }
    assert (case["checked"], case["measured"]) == (3, 3)
    assert case["best"] == "rms_norm-5x65-1"
    assert case["best_seconds"] == pytest.approx(4e-5)
    assert case["best_over"]["default"]["median"] == pytest.approx(2.5)
    assert case["best_over"]["torch_eager"] is not None
    assert case["copy_fraction"] == {"warm": pytest.approx(2.5), "cold": pytest.approx(2.5)}
    assert not found["complete"]  # fewer than forty


def test_cases_that_the_time_does_not_suffice_for_are_named(bench: Any, tmp_path: Path) -> None:
    checked = list(bench.plan(["5x65"], ["softmax"], {"width": [32], "vector": [1]}))
    found = bench.run(
        checked,
        bench.rehearsal_device("sm_90"),
        tmp_path,
        build=lambda requests: (),
        children=(rehearsed(), rehearsed()),
        seconds=-1.0,
        say=lambda line: None,
    )
    assert "not begun" in found["cases"][0]["error"]
    assert not found["complete"]

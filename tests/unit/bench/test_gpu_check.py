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

from search.errors import DeviceUnavailable
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


def test_what_cannot_be_compiled_for_is_refused_with_what_can(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as refused:
        bench.main(["--prebuild", "sm_77", "--work-dir", str(tmp_path)])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "sm_77" in said
    assert "sm_90" in said
    monkeypatch.setenv("TUNER_NVCC", str(tmp_path))
    assert bench.main(["--prebuild", "sm_90", "--work-dir", str(tmp_path)]) == bench.NO_COMPILER
    assert "is a directory" in capsys.readouterr().err


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


SPACE = {
    "width": [32, 64],
    "input": ["reload", "cache"],
    "materialize": ["private"],
    "vector": [1],
    "rows_per_block": [1],
}


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """A compiler of text: the third candidate does not compile."""

    def built(requests: Sequence[BuildRequest]) -> Iterator[BuildResult]:
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

    return built


def quick_rounds(bench: Any) -> Any:
    """The rounds without torch.compile, which takes longest, and without a second start of torch."""
    warm, (context, cold), _ = bench.ROUNDS
    return warm, (context, {name: measure for name, measure in cold.items() if name != "cold_torch_eager"})


def run(bench: Any, folder: Path, build: Any, script: dict[str, Any], **words: Any) -> Any:
    checked = list(bench.plan(["5x65"], ["rms_norm"], SPACE))
    return bench.run(
        checked,
        bench.rehearsal_device("sm_90"),
        folder,
        build=build,
        children=(rehearsed(script), rehearsed(script, cache_context="cold")),
        say=lambda line: None,
        **words,
    )


def test_a_dry_run_goes_all_the_way_and_measures_nothing(bench: Any, tmp_path: Path, build: Any) -> None:
    kept: list[Any] = []
    output = tmp_path / "gpu.json"

    def keep(found: Any) -> None:
        bench.write(output, found)
        kept.append(json.loads(output.read_text()))

    script = {"faults": {"k_3": "CUDA_ERROR_ILLEGAL_ADDRESS"}, "seconds_per_call": {"k_1": 4e-5, "k_0": 8e-5}}
    found = run(bench, tmp_path, build, script, rounds=quick_rounds(bench), keep=keep)
    assert found["measured"] is False
    (case,) = found["cases"]
    assert case["missing"] == dict.fromkeys(["cold_torch_eager", "torch_compile"], "not begun")
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
    parts = ["candidates", "finals", "torch_eager", "copy", "cold_best", "cold_copy"]
    assert case["parts"] == parts
    # after the build, after each part, and at the end, whole each time
    assert [len(one["cases"][0]["parts"]) for one in kept] == [*range(len(parts) + 1), len(parts)]
    assert [one["ended"] for one in kept] == [*[False] * (len(parts) + 1), True]
    assert kept[-1] == found
    assert [path.name for path in tmp_path.glob("*.json*")] == ["gpu.json"]


def test_what_fails_is_recorded_and_the_rest_goes_on(bench: Any, tmp_path: Path, build: Any) -> None:
    """Of any kind: what a part finds missing, what our own code raises, what the device says."""

    def mistaken(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    def refused(*_: Any) -> None:
        raise sys.modules["bench.gpu_cases"].Incomplete("the baseline disagrees")

    warm, cold = quick_rounds(bench)
    rounds = [(warm[0], {**warm[1], "finals": mistaken, "torch_eager": refused}), cold]
    found = run(bench, tmp_path, build, {}, rounds=rounds)
    (case,) = found["cases"]
    assert case["parts"] == ["candidates", "copy", "cold_copy"]
    assert case["missing"] == {
        "finals": "KeyError: 'a mistake of ours'",
        "torch_eager": "Incomplete: the baseline disagrees",
        "cold_best": "Incomplete: there is no best candidate",
        "cold_torch_eager": "not begun",
        "torch_compile": "not begun",
    }
    assert found["ended"]
    assert not found["complete"]


def test_nothing_is_complete_that_misses_a_part(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(bench, "ENOUGH", 0)
    every = [(context, dict.fromkeys(measures, nothing)) for context, measures in bench.ROUNDS]
    assert run(bench, tmp_path, lambda requests: (), {}, rounds=every)["complete"]
    for place, (context, measures) in enumerate(every):
        for name in measures:
            less = {other: measure for other, measure in measures.items() if other != name}
            fewer = [*every[:place], (context, less), *every[place + 1 :]]
            found = run(bench, tmp_path, lambda requests: (), {}, rounds=fewer)
            assert found["missing"] == [f"rms_norm-5x65: {name}: not begun"]
            assert not found["complete"]

    def broken(requests: Any) -> Any:
        raise OSError("no compiler")

    found = run(bench, tmp_path, broken, {}, rounds=every)
    assert (found["complete"], found["failed"]) == (False, {"build": "OSError: no compiler"})
    monkeypatch.setattr(bench, "ENOUGH", 1)
    assert not run(bench, tmp_path, lambda requests: (), {}, rounds=every)["complete"]


def test_others_on_the_device_cost_a_part_its_patience_and_no_more(
    bench: Any, tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PATIENCE_SECONDS", 0.05)
    found = run(bench, tmp_path, build, {"strangers": [[], [], [77]]}, rounds=[bench.ROUNDS[0]])
    (case,) = found["cases"]
    assert case["missing"]["candidates"] == "DeviceContended: others compute on the device: processes [77]"
    assert case["missing"]["copy"].startswith("DeviceContended")
    monkeypatch.setattr(bench, "PATIENCE_SECONDS", 600.0)
    monkeypatch.setattr(bench, "GRACE_SECONDS", 0.5)
    spent = bench.Budget(0.5)
    found = run(bench, tmp_path, build, {"strangers": [[], [], [77]]}, rounds=[bench.ROUNDS[0]], budget=spent)
    assert found["cases"][0]["missing"]["candidates"].startswith("Cancelled")
    assert found["cases"][0]["missing"]["copy"] == "not begun"


def test_a_device_that_is_gone_is_not_asked_for_ever(bench: Any, tmp_path: Path, build: Any) -> None:
    asked = []

    def gone(*_: Any) -> None:
        asked.append(1)
        raise DeviceUnavailable("the GPU fell off the bus")

    rounds = [(context, dict.fromkeys(measures, gone)) for context, measures in bench.ROUNDS]
    found = run(bench, tmp_path, build, {}, rounds=rounds)
    assert len(asked) == bench.LOST_IN_A_ROW
    assert len(found["missing"]) == len(bench.PARTS)


def test_parts_that_the_time_does_not_suffice_for_are_named(bench: Any, tmp_path: Path) -> None:
    found = run(bench, tmp_path, lambda requests: (), {}, budget=bench.Budget(-1.0))
    assert found["cases"][0]["missing"] == dict.fromkeys(bench.PARTS, "not begun")
    assert not found["complete"]


def test_what_was_built_elsewhere_is_taken_and_only_the_rest_is_compiled(
    bench: Any, tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine that has the GPU there is no compiler, and the folder lies elsewhere."""
    checked = list(bench.plan(["5x65"], ["rms_norm"], SPACE))
    requests = bench.requests_of(checked)
    results = {result.id: result for result in build(requests)}
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    bench.keep_built(here, "sm_90", requests, results)
    libraries = there / "artifacts" / "libraries"
    libraries.mkdir(parents=True)
    (libraries / "batch.cubin").write_bytes((tmp_path / "batch.cubin").read_bytes())
    (here / "prebuilt-sm_90.json").rename(there / "prebuilt-sm_90.json")
    asked: list[Any] = []

    def taken(folder: Path, architecture: str) -> dict[str, BuildResult]:
        asked.clear()
        compiled = bench.carried(folder, architecture, lambda rest: asked.extend(rest) or (), say=lambda line: None)
        return {result.id: result for result in compiled(requests)}

    found = taken(there, "sm_90")
    assert asked == []
    assert found.keys() == results.keys()
    for trial, result in found.items():
        assert result.rejection == results[trial].rejection
        if result.artifact is not None:
            assert result.artifact.library_path == str(libraries / "batch.cubin")
    assert taken(there, "sm_80") == {}
    assert len(asked) == len(requests)
    (libraries / "batch.cubin").unlink()
    assert [result.rejection is not None for result in taken(there, "sm_90").values()] == [True]
    monkeypatch.setattr("bench.gpu_prebuilt.lowering_sha256", lambda target: "other sources")
    assert taken(there, "sm_90") == {}

"""The builder and its child: store, freshness, cancel, crash, silence, broken toolchain, and who is blamed."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.children.child import Child
from search.errors import Cancelled, ChildFailed, ToolchainUnavailable
from search.lowering import builder as builder_module
from search.lowering.builder import Builder
from search.lowering.contract import BuildRequest, BuildResult
from search.lowering.cpu.lower import STACK_LIMIT_BYTES
from search.lowering.store import ArtifactStore, export
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain
AXES = {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}}


def request(
    name: str, *, width: int = 16, lanes: int | None = None, input_name: str = "x", **knobs: Any
) -> BuildRequest:
    """A small kernel of one input, whose name ends up in the C text."""
    document = {
        "name": "probe",
        "dims": ["rows", "cols"],
        "axes": AXES,
        "tensors": {
            input_name: {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": input_name},
        },
        "body": [
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": input_name}},
            {"tile": {"name": "t", "over": ["col"], "value": f"{input_name} - total"}},
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "t"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "t * peak"}},
        ],
    }
    case = resolve_case({"program": document, "dims": {"rows": 4, "cols": knobs.pop("cols", 40)}})
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    mapping = CpuMapping(local_lanes=lanes or width, simd_scope=knobs.pop("simd", "none"))
    candidate = Candidate(width=width, mapping=mapping, **{**base, **knobs})
    return BuildRequest(id=name, case=case.document(), candidate=candidate.document())


def build(
    builder: Builder, *requests: BuildRequest, timeout_seconds: float = 120, **options: Any
) -> dict[str, BuildResult]:
    cancelled = options.pop("cancelled", lambda: False)
    results = list(builder.build(requests, timeout_seconds=timeout_seconds, cancelled=cancelled, **options))
    assert sorted(result.id for result in results) == sorted(one.id for one in requests)
    return {result.id: result for result in results}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """For tests that leave the child alive: starting one takes seconds."""
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.release()


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path / "store")
    yield made
    made.release()


def compiler_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, then: str) -> None:
    """A compiler that does ``then`` where the batch's text holds ``when``, and else what gcc does."""
    script = tmp_path / "cc"
    gcc = shutil.which("gcc")
    script.write_text(f'#!/bin/sh\nif [ -f batch.c ] && grep -q {when} batch.c; then {then}; fi\nexec {gcc} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("TUNER_CC", str(script))


def test_equal_text_is_compiled_once_and_fresh_is_compiled_anew(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(builder, request("a"), request("same as a"), request("b", width=8))
    assert first["a"].artifact == first["same as a"].artifact
    assert first["a"].compile_seconds > 0
    again = build(builder, request("a"), request("c", width=32))
    assert again["a"].artifact == first["a"].artifact
    assert again["a"].facts == first["a"].facts
    assert again["a"].compile_seconds == 0
    assert again["c"].compile_seconds > 0
    kept, start, started = builder._child, builder._start, []

    def noted() -> Child:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(builder, "_start", noted)
    fresh = build(builder, request("a"), fresh=True)["a"]
    assert len(started) == 1
    assert not started[0].alive, "a fresh build leaves no process that a later one could reuse"
    assert builder._child is kept is not None, "what was warm stays warm"
    assert kept.alive
    assert fresh.compile_seconds > 0
    assert fresh.artifact is not None
    assert fresh.artifact.artifact_sha256 == first["a"].artifact.artifact_sha256
    assert fresh.artifact.source_sha256 == first["a"].artifact.source_sha256


def test_a_released_child_builds_for_the_next_who_would_start_the_like(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(builder, request("a"))["a"].artifact
    child = builder._child
    assert child is not None
    builder.release()
    assert child.alive
    other = Builder(tmp_path / "other store")
    second = build(other, request("a"))["a"].artifact
    assert other._child is child
    assert first is not None
    assert second is not None
    assert second.artifact_sha256 == first.artifact_sha256
    assert Path(second.library_path).is_relative_to(tmp_path / "other store")
    other.release()
    monkeypatch.setenv("TUNER_CC", "/nowhere/gcc")  # a child keeps the variables that it was started with
    with pytest.raises(ToolchainUnavailable, match="/nowhere/gcc"):
        build(builder, request("a"))
    assert builder._child is not child
    monkeypatch.delenv("TUNER_CC")
    assert build(other, request("a"))["a"].compile_seconds == 0
    assert other._child is child
    other.release()


def test_results_survive_json(shared: Builder) -> None:
    for result in build(shared, request("a")).values():
        assert BuildResult.from_document(result.document()) == result


def test_an_exported_source_prints_its_c_text_and_builds_by_hand(shared: Builder, tmp_path: Path) -> None:
    artifact = build(shared, request("a", width=32, simd="main", vector=2, partials=2))["a"].artifact
    assert artifact is not None
    source = ArtifactStore(shared.store_dir).load_source(artifact.source_sha256)
    folder = tmp_path / "export"
    export(source, folder)
    printed = subprocess.run([sys.executable, "kernel.py"], cwd=folder, capture_output=True, text=True, check=True)
    assert "int32_t kernel_kernel(" in printed.stdout
    subprocess.run(["./build.sh"], cwd=folder, check=True)
    assert ctypes.CDLL(str(folder / "kernel.so")).kernel


def test_a_schedule_that_is_illegal_comes_back_as_its_constraint(shared: Builder) -> None:
    result = build(shared, request("bad", lanes=3), request("good"))
    assert result["good"].artifact is not None
    rejection = result["bad"].rejection
    assert rejection is not None
    assert (rejection.stage, rejection.reason) == ("constraints", "local_lanes_not_divisor")


def test_a_kernel_that_wants_too_much_stack_is_rejected_with_the_numbers(shared: Builder) -> None:
    rejection = build(shared, request("big", width=64, lanes=1, cols=40_000))["big"].rejection
    assert rejection is not None
    assert (rejection.stage, rejection.reason) == ("resources", "stack_limit")
    assert rejection.detail["stack_bytes"] > rejection.detail["limit_bytes"] == STACK_LIMIT_BYTES


def test_a_member_that_the_compiler_refuses_is_the_only_one_rejected(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_that(tmp_path, monkeypatch, "g_poison", "echo 'no thank you' >&2; exit 9")
    results = build(builder, request("a"), request("poison", input_name="poison"), request("b", width=8))
    rejection = results["poison"].rejection
    assert rejection is not None
    assert (rejection.stage, rejection.reason) == ("compile", "compiler_error")
    assert rejection.detail["exit_code"] == 9
    assert "no thank you" in rejection.detail["compiler_output"]
    assert results["a"].artifact is not None
    assert results["b"].artifact is not None


def test_a_member_that_compiles_for_ever_is_the_only_one_rejected(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_that(tmp_path, monkeypatch, "g_poison", "exec sleep 300")
    monkeypatch.setattr(builder_module, "COMPILE_TIMEOUT_SECONDS", 2.0)
    results = build(builder, request("a"), request("poison", input_name="poison"))
    rejection = results["poison"].rejection
    assert rejection is not None
    assert (rejection.stage, rejection.reason) == ("compile", "compile_timeout")
    assert rejection.detail["limit_seconds"] == 2.0
    assert results["a"].artifact is not None


def test_what_kills_the_child_is_rejected_and_the_rest_is_built(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_that(tmp_path, monkeypatch, "g_poison", "kill -SEGV $PPID; sleep 1")
    results = build(builder, request("a"), request("poison", input_name="poison"), request("b", width=8))
    rejection = results["poison"].rejection
    assert rejection is not None
    assert (rejection.stage, rejection.reason) == ("compile", "compiler_crashed")
    assert rejection.detail["signal"] == "SIGSEGV"
    assert results["a"].artifact is not None
    assert results["b"].artifact is not None


def test_cancelling_kills_the_child_and_its_compiler(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "compiler.pid"
    compiler_that(tmp_path, monkeypatch, "g_poison", f"echo $$ > {note}; exec sleep 300")
    with pytest.raises(Cancelled):
        build(builder, request("poison", input_name="poison"), cancelled=note.exists)
    for _ in range(200):
        if not Path("/proc", note.read_text().strip()).exists():
            break
        time.sleep(0.05)
    assert not Path("/proc", note.read_text().strip()).exists()
    monkeypatch.delenv("TUNER_CC")
    assert build(builder, request("a"))["a"].artifact is not None, "the builder goes on with a new child"


def test_leaving_the_iterator_early_leaves_no_answers_behind(builder: Builder) -> None:
    iterator = builder.build(
        [request("a"), request("b", width=8)], timeout_seconds=120, cancelled=lambda: False, fresh=False
    )
    next(iterator)
    iterator.close()
    assert set(build(builder, request("c", width=32))) == {"c"}


def test_a_missing_compiler_is_the_toolchain_s_fault(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CC", "/nowhere/gcc")
    with pytest.raises(ToolchainUnavailable, match="/nowhere/gcc"):
        build(builder, request("a"))


@pytest.mark.parametrize("then", ["exit 1", "kill -SEGV $$", "chmod -x $0; exit 1"])
def test_a_compiler_that_breaks_is_nobody_s_fault(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    script = tmp_path / "cc"
    # Asked what it is it answers; it compiles nothing any more.
    script.write_text(f'#!/bin/sh\ncase "$*" in *.c*) {then};; esac\nexec {shutil.which("gcc")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("TUNER_CC", str(script))
    with pytest.raises(ToolchainUnavailable, match=re.escape(str(script))):
        build(builder, request("a"), request("b", width=8))


def test_a_service_without_a_home_can_build(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert build(builder, request("a"))["a"].artifact is not None


def test_a_store_that_cannot_be_written_is_nobody_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = Builder(tmp_path / "file")
    try:
        with pytest.raises(ChildFailed, match="file"):
            build(made, request("a"))
    finally:
        made.close()


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from search.lowering.builder import Builder\n"
        f"b = Builder({str(tmp_path)!r})\n"
        "print(b._start().pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        os.kill(parent.pid, signal.SIGKILL)
    for _ in range(200):
        if not Path(f"/proc/{child}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_ids_must_differ(shared: Builder) -> None:
    with pytest.raises(ValueError, match="ids"):
        build(shared, request("a"), request("a"))

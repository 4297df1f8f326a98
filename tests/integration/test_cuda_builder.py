"""CUDA candidates through the builder: one batch, cubins with facts, what is rejected, what is found again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.errors import ToolchainUnavailable
from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest, BuildResult
from search.lowering.cuda.architectures import ARCHITECTURES
from search.lowering.cuda.lower import CudaLowering
from search.lowering.cuda.nvcc import nvcc_path
from search.lowering.cuda.texts import complete_source
from search.lowering.cuda.toolchain import check
from search.lowering.merged import reload_merged
from search.lowering.store import ArtifactStore, export
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping

pytestmark = pytest.mark.toolchain


def request(name: str, kernel: str, cols: int, width: int, rows_per_block: int = 1, **knobs: Any) -> BuildRequest:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    made = Candidate(width=width, mapping=CudaMapping(rows_per_block=rows_per_block), **(base | knobs))
    case = resolve_case({"kernel": kernel, "dims": {"rows": 9, "cols": cols}})
    return BuildRequest(id=name, case=case.document(), candidate=made.document())


REQUESTS = [
    request("wide", "softmax", 512, 32, vector=4),
    request("rows", "rms_norm", 512, 64, 4, input="cache"),
    request("online", "softmax", 130, 64, algorithm="online"),
    request("unrolled", "softmax", 1024, 256, unroll=3, materialize="recompute"),
    request("a pass and a tail", "softmax", 65, 64, materialize="recompute"),
    request("too many threads", "softmax", 512, 512, 4),
    request("not a divisor", "softmax", 130, 32, vector=4),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def builder(store: Path) -> Iterator[Builder]:
    made = Builder(store, target="cuda", architecture="sm_90")
    yield made
    made.release()


@pytest.fixture(scope="module")
def built(builder: Builder) -> dict[str, BuildResult]:
    return {r.id: r for r in builder.build(REQUESTS, timeout_seconds=300, cancelled=lambda: False)}


def test_candidates_become_cubins_with_launch_and_facts(built: dict[str, BuildResult]) -> None:
    assert check("sm_90") is None
    for name, threads, rows_per_block in (("wide", 32, 1), ("rows", 256, 4), ("online", 64, 1)):
        result = built[name]
        assert result.rejection is None
        artifact, facts = result.artifact, result.facts
        assert artifact is not None
        assert facts is not None
        assert artifact.library_path.endswith(".cubin")
        assert Path(artifact.library_path).read_bytes()[:4] == b"\x7fELF"
        assert artifact.architecture == "sm_90"
        assert artifact.launch is not None
        assert (artifact.launch.threads_per_block, artifact.launch.rows_per_block) == (threads, rows_per_block)
        assert [argument.name for argument in artifact.arguments][-1] == "rows"
        assert Artifact.from_document(artifact.located_document()) == artifact
        assert Artifact.from_document(artifact.document()).library_path == ""
        assert facts.registers
        assert facts.threads_per_block == threads
        assert facts.numerics["accumulation"] == "float32"
    assert built["wide"].facts is not None
    loads = built["wide"].facts.memory_instructions
    assert loads is not None
    assert set(loads["LDG"]) == {"128"}


def test_no_load_of_a_reload_is_merged_where_the_unroll_factor_does_not_divide_the_passes(
    built: dict[str, BuildResult],
) -> None:
    facts = built["unrolled"].facts
    assert facts is not None
    assert facts.memory_instructions is not None
    # Three phases, four passes, two of them at once.
    assert facts.memory_instructions["LDG"] == {"32": 3 * 2}


def test_loads_that_were_merged_in_part_are_told_from_the_planned_ones(built: dict[str, BuildResult]) -> None:
    """Three phases of one pass and a tail: the tail's loads stay three, the pass's become one."""
    partly, whole = built["a pass and a tail"].facts, built["unrolled"].facts
    assert partly is not None
    assert whole is not None
    assert (partly.planned_load_sites, partly.memory_instructions["LDG"]) == (6, {"32": 4})  # type: ignore[index]
    assert reload_merged(partly) is True
    assert whole.planned_load_sites == 3 * 2
    assert reload_merged(whole) is None


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_999", "sm_90;rm"])
def test_an_architecture_whose_limits_are_not_known_is_not_lowered_for(architecture: str) -> None:
    with pytest.raises(ToolchainUnavailable, match=f"the limits of {architecture} are not known"):
        CudaLowering(architecture)


@pytest.mark.full
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_whose_limits_are_known_is_built_for(architecture: str, tmp_path: Path) -> None:
    with contextlib.closing(Builder(tmp_path, target="cuda", architecture=architecture)) as builder:
        for result in builder.build(REQUESTS[:3], timeout_seconds=300, cancelled=lambda: False):
            assert result.artifact is not None, result.rejection
            assert result.artifact.architecture == architecture


def test_a_builder_for_an_unknown_architecture_says_so(tmp_path: Path) -> None:
    with (
        contextlib.closing(Builder(tmp_path, target="cuda", architecture="sm_75")) as builder,
        pytest.raises(ToolchainUnavailable, match="known are sm_80, sm_86, "),
    ):
        list(builder.build(REQUESTS[:1], timeout_seconds=300, cancelled=lambda: False))


def test_what_cannot_be_is_rejected_with_its_numbers(built: dict[str, BuildResult]) -> None:
    reasons = {name: result.rejection.reason for name, result in built.items() if result.rejection is not None}
    assert reasons == {"too many threads": "threads_per_block", "not a divisor": "vector_not_divisor"}


def test_an_nvcc_that_breaks_is_nobody_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (nvcc := nvcc_path()) is None:
        pytest.skip("no nvcc on this machine")
    script = tmp_path / "nvcc"
    # Asked what it is it answers; it compiles nothing any more.
    script.write_text(f'#!/bin/sh\ncase "$*" in *batch.cu*) echo cicc is gone >&2; exit 2;; esac\nexec {nvcc} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("TUNER_NVCC", str(script))
    with (
        contextlib.closing(Builder(tmp_path / "store", target="cuda", architecture="sm_90")) as builder,
        pytest.raises(ToolchainUnavailable, match=r"cannot compile a trivial kernel: .*cicc is gone"),
    ):
        list(builder.build(REQUESTS[:2], timeout_seconds=300, cancelled=lambda: False))


def test_nvrtc_compiles_its_header_once_for_all_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The precompiled header belongs to the child, which stays between builds: the second build leaves it as it is."""
    monkeypatch.setenv("TUNER_NVCC", "none")
    with contextlib.closing(Builder(tmp_path / "store", target="cuda", architecture="sm_90")) as builder:
        (first,) = builder.build(REQUESTS[:1], timeout_seconds=300, cancelled=lambda: False)
        assert builder._child is not None
        folder = Path(builder._child._scratch)

        def headers() -> dict[Path, int]:
            return {path: path.stat().st_mtime_ns for path in folder.glob("tuner-nvrtc-*/*")}

        made = headers()
        (second,) = builder.build(REQUESTS[1:2], timeout_seconds=300, cancelled=lambda: False)
        assert made
        assert headers() == made
    assert first.artifact is not None
    assert second.artifact is not None


def test_a_kernel_is_found_again_and_its_source_is_whole(
    builder: Builder, built: dict[str, BuildResult], store: Path, tmp_path: Path
) -> None:
    (again,) = builder.build(REQUESTS[:1], timeout_seconds=300, cancelled=lambda: False)
    artifact = built["wide"].artifact
    assert artifact is not None
    assert again.artifact == artifact
    assert again.compile_seconds == 0.0
    source = ArtifactStore(store).load_source(artifact.source_sha256)
    text = complete_source(source, artifact.symbol)
    assert f"{artifact.symbol}(" in text
    assert '#include "' not in text
    names = {path.name for path in export(source, tmp_path / "out")}
    assert names == {"kernel.py", "kernel.cu", "tuner.cuh", "build.sh"}

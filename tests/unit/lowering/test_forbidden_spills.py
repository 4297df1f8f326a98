"""Forbidden spills: the same machine code is an artifact for who allows them and a rejection for who does not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from search.lowering import batched
from search.lowering.batched import BatchedBuild, Built, Lowered
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Source
from search.lowering.cuda.resources import spill_rejection
from search.outcome import Rejected
from search.planning.schedule import Schedule


class PaperBuild(BatchedBuild[str]):
    """Compiles nothing; what it says it compiled spills 16 bytes."""

    batch_size = 4
    toolchain = "paper"
    compiled = 0

    def emit(self, schedule: Schedule) -> str:
        return f"width {schedule.candidate.width}"

    def lower(self, tilelang_text: str, schedule: Schedule) -> str | Rejected:
        return tilelang_text

    def numerics(self, schedule: Schedule) -> dict[str, str]:
        return {}

    def source(self, tilelang_text: str, kernel: str) -> Source:
        return Source(
            source_sha256=f"{abs(hash(kernel)):064x}",
            tilelang_text=tilelang_text,
            c_text=kernel,
            header_name="tuner.cuh",
            header_text="",
            build_command=("nvcc",),
        )

    def spills(self, facts: CodeFacts) -> Rejected | None:
        return spill_rejection(facts)

    def compile(self, kernels: Mapping[str, Lowered[str]]) -> dict[str, Built]:
        self.compiled += 1
        sha256, path = self.store.save_library(b"code", suffix="cubin")
        found = {}
        for symbol, one in kernels.items():
            digests = {"source_sha256": one.source.source_sha256, "artifact_sha256": "a" * 64}
            facts = CodeFacts(
                **digests,
                static_instructions=9,
                static_branches=0,
                stack_bytes=16,
                widest_vector_bits=32,
                code_bytes=99,
                registers=255,
                spill_bytes=16,
                spill_store_bytes=8,
                spill_load_bytes=8,
            )
            artifact = Artifact(
                **digests,
                library_path=path,
                library_sha256=sha256,
                symbol=symbol,
                arguments=(),
                architecture="sm_90",
            )
            found[symbol] = Built(facts=facts, artifact=artifact)
        return found


def test_built_anew_or_found_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_case: Any, cuda: Any
) -> None:
    monkeypatch.setattr(batched, "load", lambda: None)

    def built(**options: Any) -> tuple[BuildResult, int]:
        case, candidate = kernel_case("row_sum").document(), cuda(32).document()
        build = PaperBuild(str(tmp_path), fresh=False, compile_timeout_seconds=1.0, progress=lambda: None, fetch=None)
        (result,) = build.results([BuildRequest(id="one", case=case, candidate=candidate, **options)])
        return result, build.compiled

    refused, compiled = built(spills_allowed=False)
    assert (refused.artifact, compiled) == (None, 1)
    assert refused.rejection is not None
    assert (refused.rejection.stage, refused.rejection.reason) == ("resources", "spills")
    assert refused.rejection.detail == {"spill_store_bytes": 8, "spill_load_bytes": 8, "registers_per_thread": 255}
    assert refused.facts is not None, "what it would have taken stays visible"
    allowed, compiled = built()
    assert (allowed.rejection, compiled) == (None, 0), "equal code is compiled once, whoever asked first"
    assert allowed.artifact is not None
    again, compiled = built(spills_allowed=False)
    assert (again.artifact, again.rejection, compiled) == (None, refused.rejection, 0)


def test_a_request_says_so_only_when_spills_are_forbidden() -> None:
    request = BuildRequest(id="one", case={}, candidate={})
    assert set(request.document()) == {"id", "case", "candidate"}
    for one in (request, BuildRequest(id="one", case={}, candidate={}, spills_allowed=False)):
        assert BuildRequest.from_document(one.document()) == one

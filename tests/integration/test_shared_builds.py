"""Two machines with one shared artifact store: what one built, the other takes, verified, and compiles nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import DirectoryBlobs
from search.lowering.builder import Builder
from search.lowering.contract import BuildRequest, BuildResult
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain


def request(width: int) -> BuildRequest:
    case = resolve_case({"kernel": "rms_norm", "dims": {"rows": 2, "cols": 24}})
    knobs = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    candidate = Candidate(width=width, mapping=CpuMapping(local_lanes=width, simd_scope="none"), **knobs)
    return BuildRequest(id=str(width), case=case.document(), candidate=candidate.document())


def build(builder: Builder, *requests: BuildRequest) -> dict[str, BuildResult]:
    found = builder.build(requests, timeout_seconds=120, cancelled=lambda: False)
    return {result.id: result for result in found}


def test_what_one_machine_built_is_compiled_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    blobs = DirectoryBlobs(tmp_path / "shared")
    here = Builder(ArtifactCache(tmp_path / "here", blobs))
    there = Builder(ArtifactCache(tmp_path / "there", blobs))
    try:
        first = build(here, request(8))["8"]
        assert first.compile_seconds > 0
        # A store is named by each command, so the other machine may as well be served by the warm child.
        there._child, here._child = here._child, None
        second = build(there, request(8), request(16))
        assert second["8"].compile_seconds == 0
        assert second["16"].compile_seconds > 0
        assert (second["8"].artifact, second["8"].facts) == (first.artifact, first.facts)
        assert first.artifact is not None
        assert second["8"].artifact is not None
        assert Path(second["8"].artifact.library_path).is_relative_to(tmp_path / "there")
        library = tmp_path / "shared" / "libraries" / first.artifact.library_sha256
        library.write_bytes(library.read_bytes()[:-1])
        for store in (tmp_path / "there" / "built", tmp_path / "there" / "libraries"):
            for file in store.iterdir():
                file.unlink()
        again = build(there, request(8))["8"]
        assert again.compile_seconds > 0, "what is damaged counts as missing"
        assert again.artifact is not None
        assert again.artifact.artifact_sha256 == first.artifact.artifact_sha256
        mended = ArtifactCache(tmp_path / "third", blobs)
        assert mended.load_library(again.artifact.library_sha256) is not None
        assert mended.load_source(first.artifact.source_sha256).source_sha256 == first.artifact.source_sha256
        assert dataclasses.replace(again.artifact, library_path="") == again.artifact
    finally:
        here.close()
        there.close()

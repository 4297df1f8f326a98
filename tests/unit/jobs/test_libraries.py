"""Where a library is: in this machine's store, in the shared one, or built again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.errors import ArtifactLost, ArtifactTooLarge
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import DirectoryBlobs
from search.lowering.contract import Artifact, BuildRequest, BuildResult, CodeFacts, Source
from search.outcome import Rejected
from tuner_service.workers.libraries import Libraries

REQUEST = BuildRequest(id="trial_1", case={}, candidate={})
SOURCE = Source(
    source_sha256="ab" * 32,
    tilelang_text="t",
    c_text="c",
    header_name="tuner.h",
    header_text="h",
    build_command=("gcc",),
)
FACTS = CodeFacts(
    source_sha256="ab" * 32,
    artifact_sha256="cd" * 32,
    static_instructions=1,
    static_branches=0,
    stack_bytes=0,
    widest_vector_bits=0,
    code_bytes=1,
)


class Bench:
    """One machine with a builder whose compiler is a function."""

    def __init__(self, folder: Path, shared: DirectoryBlobs | None, *, code: str = "cd" * 32) -> None:
        self.artifacts = ArtifactCache(folder, shared, limit_bytes=1000)
        self.code, self.builds, self.rejection = code, 0, None
        self.closed = 0

    def build(self, requests: Any, **how: Any) -> Iterator[BuildResult]:
        assert how["fresh"], "the stores have nothing to say about what they lost"
        self.builds += 1
        for request in requests:
            if self.rejection is not None:
                yield BuildResult(id=request.id, rejection=self.rejection)
            else:
                yield self.built(request.id, b"alone")

    def built(self, id_: str, data: bytes) -> BuildResult:
        self.artifacts.store.save_source(SOURCE)
        sha256, path = self.artifacts.store.save_library(data)
        artifact = Artifact(
            source_sha256=SOURCE.source_sha256,
            artifact_sha256=self.code,
            library_path=path,
            library_sha256=sha256,
            symbol="k",
            arguments=(),
        )
        result = BuildResult(id=id_, artifact=artifact, facts=FACTS, build_key="ef" * 32)
        self.artifacts.publish(result)
        return result

    def close(self) -> None:
        self.closed += 1

    def libraries(self, *, sources: bool = False) -> Libraries:
        make: Any = lambda: self  # noqa: E731
        return Libraries(self.artifacts, make, sources=sources, compile_timeout_seconds=1.0, cancelled=lambda: False)


@pytest.fixture
def shared(tmp_path: Path) -> DirectoryBlobs:
    (tmp_path / "shared").mkdir()
    return DirectoryBlobs(tmp_path / "shared")


def recorded(result: BuildResult) -> Artifact:
    """The artifact as a ledger gives it back: without a path."""
    assert result.artifact is not None
    document = result.artifact.document()
    assert "library_path" not in document
    return Artifact.from_document(document)


def test_another_machine_finds_it_and_builds_nothing(tmp_path: Path, shared: DirectoryBlobs) -> None:
    built = recorded(Bench(tmp_path / "a", shared).built("t", b"batch"))
    other = Bench(tmp_path / "b", shared)
    located = other.libraries()(REQUEST, built)
    assert located == built
    assert Path(located.library_path).read_bytes() == b"batch"
    assert other.builds == 0


def test_what_every_store_lost_is_built_again_for_everybody(tmp_path: Path, shared: DirectoryBlobs) -> None:
    built = recorded(Bench(tmp_path / "a", shared).built("t", b"batch"))
    (tmp_path / "shared" / "libraries" / built.library_sha256).write_bytes(b"damaged")
    other, third = Bench(tmp_path / "b", shared), Bench(tmp_path / "c", shared)
    located = other.libraries()(REQUEST, built)
    assert (other.builds, other.closed) == (1, 1)
    assert located.artifact_sha256 == built.artifact_sha256
    assert Path(located.library_path).read_bytes() == b"alone"
    assert third.artifacts.load_library(located.library_sha256) == b"alone"


def test_a_lost_source_is_built_again_where_it_is_simulated(tmp_path: Path, shared: DirectoryBlobs) -> None:
    first = Bench(tmp_path / "a", shared)
    built = recorded(first.built("t", b"batch"))
    for place in (tmp_path / "shared" / "sources" / ("ab" * 32), tmp_path / "a" / "sources" / f"{'ab' * 32}.json"):
        place.unlink()
    assert first.libraries()(REQUEST, built) == built
    assert first.builds == 0
    first.libraries(sources=True)(REQUEST, built)
    assert first.builds == 1
    assert first.artifacts.load_source("ab" * 32) == SOURCE


def test_a_new_build_that_is_other_code_or_none_is_no_stand_in(tmp_path: Path, shared: DirectoryBlobs) -> None:
    built = recorded(Bench(tmp_path / "a", None).built("t", b"batch"))
    other = Bench(tmp_path / "b", shared, code="99" * 32)
    with pytest.raises(ArtifactLost, match=rf"lost the library {built.library_sha256} of trial_1.*code 9999"):
        other.libraries()(REQUEST, built)
    other.rejection = Rejected(stage="compile", reason="compiler_error", detail={})
    with pytest.raises(ArtifactLost, match="compiler_error"):
        other.libraries()(REQUEST, built)


def test_a_library_that_is_too_large_is_not_put(tmp_path: Path, shared: DirectoryBlobs) -> None:
    with pytest.raises(ArtifactTooLarge, match="has 1001 bytes, and the artifact store takes 1000"):
        Bench(tmp_path / "a", shared).built("t", bytes(1001))
    assert not (tmp_path / "shared" / "libraries").exists()

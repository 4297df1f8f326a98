"""The artifact store: content addressed, atomic, and no way out of its directory."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from search.errors import InvalidInput
from search.lowering.contract import Argument, Artifact, CodeFacts, Source
from search.lowering.store import KINDS, ArtifactStore, export

KEY = "ab" * 32
SOURCE = Source(
    source_sha256=KEY,
    tilelang_text="print(1)\n",
    c_text='#include "tuner.h"\nint one(void) { return 1; }\n',
    header_name="tuner.h",
    header_text="/* nothing */\n",
    build_command=("cp", "kernel.c", "kernel.so"),
)


def built(store: ArtifactStore, data: bytes = b"library") -> tuple[Artifact, CodeFacts]:
    sha256, path = store.save_library(data)
    artifact = Artifact(
        source_sha256=KEY,
        artifact_sha256="cd" * 32,
        library_path=path,
        library_sha256=sha256,
        symbol="k_1",
        arguments=(Argument(name="x", kind="tensor"), Argument(name="rows", kind="dim")),
    )
    facts = CodeFacts(
        source_sha256=KEY,
        artifact_sha256="cd" * 32,
        static_instructions=7,
        static_branches=1,
        stack_bytes=8,
        widest_vector_bits=512,
        code_bytes=40,
        numerics={"exp": "polynomial"},
    )
    return artifact, facts


def test_a_source_comes_back_as_it_was(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.save_source(SOURCE)
    assert ArtifactStore(tmp_path).load_source(KEY) == SOURCE


def test_what_is_found_is_young_again_and_what_rests_goes(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.save_source(SOURCE)
    artifact, facts = built(store)
    store.save_build(KEY, artifact, facts)

    def age() -> None:
        for path in tmp_path.rglob("*.*"):
            os.utime(path, (0, 0))

    age()
    assert store.find_build(KEY) is not None
    assert [list(store.resting(kind, seconds=60)) for kind in KINDS] == [[], [], [f"sources/{KEY}.json"]]
    assert store.trim(seconds=60) == 1
    age()
    assert list(store.resting("libraries", seconds=1e12)) == []
    assert store.remove([f"built/{KEY}.json", "built/none.json"], seconds=60) == 1
    assert store.find_build(KEY) is None


@pytest.mark.parametrize("key", ["00" * 32, "", "../../etc/passwd", "AB" * 32, "zz", "a" * 65])
def test_an_unknown_or_impossible_key_is_invalid_input(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidInput):
        ArtifactStore(tmp_path).load_source(key)


def test_a_build_is_found_again_only_while_its_library_is_whole(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    assert store.find_build(KEY) is None
    artifact, facts = built(store)
    store.save_build(KEY, artifact, facts)
    assert store.find_build(KEY) == (artifact, facts)
    Path(artifact.library_path).write_bytes(b"trunc")
    assert store.find_build(KEY) is None
    Path(artifact.library_path).unlink()
    assert store.find_build(KEY) is None


def test_a_store_that_moved_finds_its_libraries(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "here")
    store.save_build(KEY, *built(store))
    (tmp_path / "here").rename(tmp_path / "there")
    found = ArtifactStore(tmp_path / "there").find_build(KEY)
    assert found is not None
    assert Path(found[0].library_path).is_relative_to(tmp_path / "there")


def test_a_damaged_record_is_not_found_rather_than_believed(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.save_build(KEY, *built(store))
    (tmp_path / "built" / f"{KEY}.json").write_text('{"artifact": {}}')
    assert store.find_build(KEY) is None


def test_libraries_are_named_by_their_bytes_and_written_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    sha256, path = store.save_library(b"abc")
    assert sha256 == hashlib.sha256(b"abc").hexdigest()
    assert Path(path).read_bytes() == b"abc"
    before = Path(path).stat().st_ino
    assert store.save_library(b"abc") == (sha256, path)
    assert Path(path).stat().st_ino == before
    assert [file.name for file in Path(path).parent.iterdir()] == [f"{sha256}.so"]


def test_a_truncated_library_is_written_again(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    _, path = store.save_library(b"abc")
    Path(path).write_bytes(b"a")
    store.save_library(b"abc")
    assert Path(path).read_bytes() == b"abc"


def test_a_damaged_library_of_the_same_size_is_written_again(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    sha256, path = store.save_library(b"abc")
    Path(path).write_bytes(b"abX")
    assert store.load_library(sha256) is None
    assert store.save_library(b"abc") == (sha256, path)
    assert store.load_library(sha256) == b"abc"


def test_an_export_builds_by_hand(tmp_path: Path) -> None:
    written = export(SOURCE, tmp_path / "out")
    assert sorted(path.name for path in written) == ["build.sh", "kernel.c", "kernel.py", "tuner.h"]
    subprocess.run(["./build.sh"], cwd=tmp_path / "out", check=True)
    assert (tmp_path / "out" / "kernel.so").read_text() == SOURCE.c_text

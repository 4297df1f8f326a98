"""One suite for every place of shared artifacts: a directory, a database, an S3 service."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from s3_server import BUCKET, S3Server, s3_server
from sqlalchemy import text

from search.errors import ArtifactsUnavailable
from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import MARKER, Blobs, DirectoryBlobs
from search.lowering.contract import Argument, Artifact, BuildResult, CodeFacts, Source
from search.lowering.store import ArtifactStore
from tuner_service.artifacts.database import DatabaseBlobs
from tuner_service.artifacts.s3 import S3Blobs
from tuner_service.db.engine import Database

NAME = "libraries/" + "ab" * 32
LIMIT = 1 << 20


@pytest.fixture
def s3() -> list[S3Server]:
    """The S3 server behind the blobs, where there is one."""
    return []


@pytest.fixture(params=["directory", "sqlite", "postgresql", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, s3: list[S3Server]) -> Iterator[Blobs]:
    match request.param:
        case "directory":
            (tmp_path / "shared").mkdir()
            yield DirectoryBlobs(tmp_path / "shared")
        case "sqlite" | "postgresql":
            if request.param == "sqlite":
                path = tmp_path / "ledger.sqlite3"
                path.write_bytes(request.getfixturevalue("sqlite_template").read_bytes())
                database = Database(f"sqlite:///{path}")
            else:
                database = Database(request.getfixturevalue("postgres_url"))
            yield DatabaseBlobs(database)
            database.close()
        case "s3":
            with s3_server() as server:
                s3.append(server)
                place = S3Blobs(f"s3://{BUCKET}/a/prefix", server.environment)
                yield place
                place.close()


def test_nothing_is_there_until_it_was_put(blobs: Blobs) -> None:
    assert blobs.get(NAME, limit_bytes=LIMIT) is None
    blobs.put({NAME: b"\x00\xff machine code"})
    assert blobs.get(NAME, limit_bytes=LIMIT) == b"\x00\xff machine code"
    assert blobs.get(NAME.replace("ab", "ba"), limit_bytes=LIMIT) is None


def test_putting_again_changes_nothing_and_other_bytes_take_the_place_of_damaged_ones(blobs: Blobs) -> None:
    for data in (b"damaged", b"whole", b"whole", b""):
        blobs.put({NAME: data, "texts/" + "00" * 32: b"beside"})
        assert blobs.get(NAME, limit_bytes=LIMIT) == data
    blobs.put({})


def test_more_than_the_limit_is_not_read(blobs: Blobs) -> None:
    blobs.put({NAME: bytes(100_000)})
    assert blobs.get(NAME, limit_bytes=99_999) is None
    assert blobs.get(NAME, limit_bytes=100_000) == bytes(100_000)


def grow_old(blobs: Blobs, name: str, seconds: float, s3: list[S3Server]) -> None:
    """As if the blob had been put so long ago."""
    match blobs:
        case DirectoryBlobs():
            os.utime(blobs.folder / name, (time.time() - seconds,) * 2)
        case DatabaseBlobs():
            stamp = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="microseconds")
            with blobs._database.write() as session:
                session.execute(
                    text("UPDATE artifacts SET created_at = :stamp WHERE name = :name"),
                    {"stamp": stamp.replace("+00:00", "Z"), "name": name},
                )
        case _:
            s3[0].modified[f"/{BUCKET}/a/prefix/{name}"] -= seconds


def test_what_nobody_put_for_long_is_listed_and_removed_unless_it_is_put_again(
    blobs: Blobs, s3: list[S3Server]
) -> None:
    names = [f"libraries/{number:064x}" for number in range(5)]
    other = f"sources/{1:064x}"
    assert list(blobs.resting("libraries", seconds=0)) == []
    blobs.put({name: name.encode() for name in (*names, other)})
    for name in (*names[:4], other):
        grow_old(blobs, name, 90_000, s3)
    assert sorted(blobs.resting("libraries", seconds=86_400)) == names[:4]
    assert list(blobs.resting("libraries", seconds=100_000)) == []
    blobs.put({names[0]: names[0].encode()})
    assert blobs.remove(names, seconds=86_400) == 3, "two are young: one new, and one that was put again"
    left = [name for name in (*names, other) if blobs.get(name, limit_bytes=LIMIT) is not None]
    assert left == [names[0], names[4], other]
    assert blobs.remove(names, seconds=86_400) == 0
    blobs.put({names[1]: b"anew"})
    assert blobs.get(names[1], limit_bytes=LIMIT) == b"anew"


def test_what_a_machine_uses_again_is_young_again(blobs: Blobs, tmp_path: Path, s3: list[S3Server]) -> None:
    """A build that was fetched is about to be referred to, so that nobody may sweep it away meanwhile."""
    here, there = (ArtifactCache(tmp_path / name, blobs) for name in ("here", "there"))
    result = built(here)
    here.publish(result)
    kinds = ("built", "libraries", "sources")
    names = [name for kind in kinds for name in blobs.resting(kind, seconds=0)]
    assert len(names) == 3
    for name in names:
        grow_old(blobs, name, 90_000, s3)
    there.fetch_build(KEY)
    there.load_source(SOURCE.source_sha256)
    there.publish(result)
    assert [name for kind in kinds for name in blobs.resting(kind, seconds=86_400)] == []


def test_many_threads_put_and_get_the_same_names(blobs: Blobs) -> None:
    names = {f"texts/{hashlib.sha256(bytes([n])).hexdigest()}": bytes([n]) * 5000 for n in range(6)}
    wrong: list[object] = []

    def work(backwards: bool) -> None:
        try:
            blobs.put(dict(sorted(names.items(), reverse=backwards)))
            wrong.extend(n for n, data in names.items() if blobs.get(n, limit_bytes=LIMIT) != data)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(bool(n % 2),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


SOURCE = Source(
    source_sha256="cd" * 32,
    tilelang_text="print(1)\n",
    c_text='#include "tuner.h"\n',
    header_name="tuner.h",
    header_text="/* ½ */\n",
    build_command=("gcc", "kernel.c"),
    files={"README": "more"},
)
KEY = "ef" * 32


def built(cache: ArtifactCache, data: bytes = b"\x7fELF library") -> BuildResult:
    cache.store.save_source(SOURCE)
    sha256, path = cache.store.save_library(data)
    artifact = Artifact(
        source_sha256=SOURCE.source_sha256,
        artifact_sha256="12" * 32,
        library_path=path,
        library_sha256=sha256,
        symbol="k_1",
        arguments=(Argument(name="x", kind="tensor"),),
    )
    facts = CodeFacts(
        source_sha256=SOURCE.source_sha256,
        artifact_sha256="12" * 32,
        static_instructions=7,
        static_branches=1,
        stack_bytes=8,
        widest_vector_bits=512,
        code_bytes=40,
        numerics={"exp": "polynomial"},
    )
    return BuildResult(id="t", artifact=artifact, facts=facts, build_key=KEY)


def test_what_one_machine_built_another_has_whole_and_under_a_path_of_its_own(blobs: Blobs, tmp_path: Path) -> None:
    here, there = (ArtifactCache(tmp_path / name, blobs) for name in ("here", "there"))
    result = built(here)
    assert result.artifact is not None
    assert there.located(result.artifact) is None
    here.publish(result)
    located = there.located(result.artifact)
    assert located is not None
    assert Path(located.library_path).is_relative_to(tmp_path / "there")
    assert Path(located.library_path).read_bytes() == b"\x7fELF library"
    assert there.load_source(SOURCE.source_sha256) == SOURCE
    third = ArtifactCache(tmp_path / "third", blobs)
    assert third.store.find_build(KEY) is None
    third.fetch_build(KEY)
    assert third.store.find_build(KEY) == (result.artifact, result.facts)


def test_who_reads_a_source_needs_no_room_for_a_copy(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (ArtifactCache(tmp_path / name, blobs) for name in ("here", "there"))
    here.publish(built(here))

    def full(self: ArtifactStore, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ArtifactStore, "_write", full)
    assert there.load_source(SOURCE.source_sha256) == SOURCE


def test_damage_in_the_place_is_noticed_and_mended_by_the_next_build(blobs: Blobs, tmp_path: Path) -> None:
    here, there = (ArtifactCache(tmp_path / name, blobs) for name in ("here", "there"))
    result = built(here)
    here.publish(result)
    assert result.artifact is not None
    name = f"libraries/{result.artifact.library_sha256}"
    whole = blobs.get(name, limit_bytes=LIMIT)
    assert whole is not None
    for damaged in (whole[:-1], whole[:20], b"", whole[:-2] + b"\x00\x00", whole + b"x"):
        blobs.put({name: damaged})
        assert there.load_library(result.artifact.library_sha256) is None
        there.fetch_build(KEY)
        assert there.store.find_build(KEY) is None
    there.publish(built(there))
    assert blobs.get(name, limit_bytes=LIMIT) == whole


def test_a_shared_directory_that_is_not_mounted_is_an_outage_and_no_empty_store(tmp_path: Path) -> None:
    with pytest.raises(ArtifactsUnavailable, match="is not there; make it, or mount it"):
        DirectoryBlobs(tmp_path / "shared")
    (tmp_path / "shared").mkdir()
    blobs = DirectoryBlobs(tmp_path / "shared")
    blobs.put({NAME: b"kept"})
    assert [file.name for file in (tmp_path / "shared" / "libraries").iterdir()] == ["ab" * 32]
    (tmp_path / "shared" / MARKER).rename(tmp_path / "marker")
    with pytest.raises(ArtifactsUnavailable, match="not mounted"):
        blobs.put({NAME: b"lost"})
    with pytest.raises(ArtifactsUnavailable, match="not mounted"):
        blobs.get("texts/" + "00" * 32, limit_bytes=LIMIT)
    (tmp_path / "shared" / "texts").write_text("in the way")
    (tmp_path / "marker").rename(tmp_path / "shared" / MARKER)
    with pytest.raises(ArtifactsUnavailable, match="cannot be used"):
        blobs.put({"texts/" + "00" * 32: b"x"})


def test_a_full_disk_is_told_apart_from_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    blobs = DirectoryBlobs(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        blobs.put({NAME: b"x"})
    assert list((tmp_path / "libraries").iterdir()) == []

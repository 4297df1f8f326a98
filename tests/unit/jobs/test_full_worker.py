"""A worker whose disk is full hands its tasks back, takes no other, says so, and goes on when there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search.errors import ChildFailed, LocksUnusable
from search.measuring.device_lock import open_lock
from search.steps import Build, Measure
from tuner_service.db.engine import Database
from tuner_service.workers import disk_room
from tuner_service.workers.disk_room import DiskRoom
from tuner_service.workers.holding import Holding
from tuner_service.workers.perform import Worker
from tuner_service.workers.registry import DeviceRegistry

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/work")


@pytest.fixture
def room_after(service: Any, database: Database, tools: Any) -> Callable[[list[bool]], list[str]]:
    """A service whose worker has somewhere to report a full disk; ``news``: what it is told then, in turn."""

    def make(news: list[bool]) -> list[str]:
        heard: list[str] = []
        answers = iter(news)

        def out_of_space(reason: str) -> bool:
            heard.append(reason)
            return next(answers)

        service.worker = Worker(
            database=database,
            ledger=service.ledger,
            tools=tools,
            cancel_tasks=lambda job_id: service.engine.cancel(job_id),
            out_of_space=out_of_space,
        )
        return heard

    return make


@pytest.mark.parametrize(
    "error",
    [FULL, ChildFailed(f"the child said: {os.strerror(errno.ENOSPC)}"), LocksUnusable("no space left on disk: ")],
)
@pytest.mark.parametrize("kind", [Build, Measure])
def test_tasks_are_asked_for_again_and_nobody_is_charged(
    service: Any, tools: Any, submitted: str, room_after: Any, kind: type, error: Exception
) -> None:
    times = iter(range(9))  # slots and devices that ran into it at once: more than the faults that a job may have
    heard = room_after([True] + [False] * 8)
    tools.faults = lambda step, state: error if isinstance(step, kind) and next(times, None) is not None else None
    job = service.finish(submitted)
    assert (job["state"], job["progress"]["measured"]) == ("succeeded", 3)
    assert len(heard) == 9
    assert heard[0].startswith("no space left on disk: ")
    assert service.trials(submitted, stage="lost_worker") == []


def test_where_there_seems_to_be_room_each_time_the_job_ends_in_words(
    service: Any, tools: Any, submitted: str, room_after: Any
) -> None:
    room_after([True] * 9)
    tools.faults = lambda step, state: FULL if isinstance(step, Build) else None
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert "6 tasks in a row failed on our side: no space left on disk" in job["error"]


def test_there_is_room_again_when_every_folder_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[str | None] = []
    full = {tmp_path / "work"}
    (tmp_path / "work").mkdir()
    room = DiskRoom([tmp_path, tmp_path / "work", tmp_path / "not there"], changed=lambda: changes.append(room.reason))

    def allocate(descriptor: int, _offset: int, _length: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().parent in full:
            raise FULL

    monkeypatch.setattr(disk_room.os, "posix_fallocate", allocate)
    monkeypatch.setattr(disk_room, "LOOK_SECONDS", 0.0)
    room.look()
    assert room.ran_out("no space")
    assert not room.ran_out("no space, once more")
    room.look()
    assert room.reason == "no space"
    full.clear()
    room.look()
    assert changes == ["no space", None]
    assert room.ran_out("no space again")
    assert list(tmp_path.iterdir()) == [tmp_path / "work"], "looking leaves nothing"


def test_a_lock_folder_that_cannot_be_used_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_room, "LOOK_SECONDS", 0.0)
    locks = tmp_path / "locks"
    locks.write_text("a file, where a folder should be")
    room = DiskRoom([tmp_path], locks=[locks])
    with pytest.raises(LocksUnusable, match="locks") as caught:
        open_lock("host-quiet", lock_dir=locks)
    room.ran_out(str(caught.value))
    room.look()
    assert room.reason is not None
    locks.unlink()
    locks.mkdir()
    room.look()
    assert room.reason is None


def test_the_team_hears_of_it(database: Database, device: Any, make_device: Any) -> None:
    full = [True]
    row = {"id": "first", "host": "h", "pid": 1, "place": "p", "version": "1", "compile_slots": 1}
    worker = Holding(
        database=database,
        row=row,
        devices=lambda: {device.id: device},
        compile_keys=lambda: ["cpu-1"],
        is_full=lambda: full[0],
        lost_seconds=30.0,
    )
    registry = DeviceRegistry(database, lost_seconds=30.0)
    worker.beat()
    registry.refresh()
    assert registry.known[device.id] == replace(
        device,
        available=False,
        reason="worker first has no space left on its disk, or cannot use its lock folder; it goes on when it can",
    )
    assert registry.compile_slots("cpu-1") == 0
    full[0] = False
    worker.beat()
    assert registry.refresh()
    assert (registry.known[device.id].available, registry.compile_slots("cpu-1")) == (True, 1)

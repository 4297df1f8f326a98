"""A worker drops the copies of artifacts that it did not use, when somebody prunes, and once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from search.lowering.store import ArtifactStore
from tuner_service.db.engine import Database
from tuner_service.db.queries.deployment import COPIES_REST, record_fact
from tuner_service.workers import own_copies
from tuner_service.workers.own_copies import OwnCopies

DAY_SECONDS = 86_400.0


def ask(database: Database, seconds: float) -> None:
    with database.write() as session:
        record_fact(session, COPIES_REST, f"{seconds:g}", by="tuner prune", replace=True)


def test_what_rests_goes_when_somebody_prunes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_copies, "LOOK_SECONDS", 0.0)
    store = ArtifactStore(tmp_path)

    def library(data: bytes, days: float) -> Path:
        path = Path(store.save_library(data)[1])
        os.utime(path, (time.time() - days * DAY_SECONDS,) * 2)
        return path

    old, recent, again = library(b"old", 40), library(b"recent", 3), library(b"again", 40)
    copies = OwnCopies(database, store)
    copies.look()
    assert old.exists(), "nobody pruned yet"
    store.save_library(b"again")  # used again: young
    ask(database, 30 * DAY_SECONDS)
    copies.look()
    assert [path.exists() for path in (old, recent, again)] == [False, True, True]
    late = library(b"late", 40)
    copies.look()
    assert late.exists(), "that was done"
    ask(database, 30 * DAY_SECONDS)
    copies.look()
    assert not late.exists()

"""The word for the database's condition, and how long a caller waits for a locked one."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tuner_service.db import condition as module
from tuner_service.db.condition import condition
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.db.queries import devices
from tuner_service.errors import DatabaseBusy, DatabaseFull, DatabaseProblem


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'ledger.sqlite3'}", lock_wait_seconds=0.2)
    upgrade(database)
    yield database
    database.close()


def write(database: Database, size: int = 1) -> None:
    with database.write() as session:
        devices.seen_device(session, {"id": f"d{size}", "kind": "cpu", "filler": "x" * size})


def test_a_lock_shows_once_a_write_has_met_it_and_until_it_is_gone(database: Database) -> None:
    hurried = database.within(0.1)
    other = sqlite3.connect(database.place, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert condition(hurried) == ("ok", None), "reading works, and nothing has tried to write"
    with pytest.raises(DatabaseBusy):
        write(database)
    word, reason = condition(hurried)
    assert word == "locked"
    assert database.place in str(reason)
    other.execute("ROLLBACK")
    other.close()
    assert condition(hurried) == ("ok", None)
    assert database.write_problem is None


def test_a_lock_is_known_while_a_patient_writer_waits(database: Database) -> None:
    patient = database.within(600.0)
    other = sqlite3.connect(database.place, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    thread = threading.Thread(target=write, args=(patient,))
    thread.start()
    while database.write_problem is None:
        thread.join(0.01)
    assert condition(database.within(0.1))[0] == "locked"
    other.execute("ROLLBACK")
    other.close()
    thread.join()
    assert database.write_problem is None


def test_a_full_database_shows_until_there_is_room_again(database: Database) -> None:
    def overfill() -> None:
        with database.write() as session:
            pages = session.execute(text("PRAGMA page_count")).scalar_one()
            session.execute(text(f"PRAGMA max_page_count = {pages}"))
            devices.seen_device(session, {"id": "d", "kind": "cpu", "filler": "x" * 1_000_000})

    with pytest.raises(DatabaseFull):
        overfill()
    assert isinstance(database.write_problem, DatabaseFull)
    database.close()  # the limit was the connection's
    assert condition(database) == ("ok", None)


def test_a_full_disk_shows_before_anything_has_failed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(Path(database.place).parent)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage._replace(free=4096))
    word, reason = condition(database)
    assert word == "full"
    assert "4096 bytes" in str(reason)


def test_a_database_that_cannot_be_read_and_one_of_another_version(database: Database) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'ffff'"))
    assert condition(database)[0] == "outdated"
    database.close()
    Path(database.place).write_bytes(b"no database " * 1000)
    for suffix in ("-wal", "-shm"):
        Path(database.place + suffix).unlink(missing_ok=True)
    word, reason = condition(database)
    assert word == "unavailable"
    assert database.place in str(reason)


def test_a_caller_in_a_hurry_does_not_wait_for_a_patient_one(database: Database) -> None:
    """A writer that waits for another process holds the turn; who has less patience gives up by itself."""
    patient = database.within(600.0)
    other = sqlite3.connect(database.place, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    recorded: list[DatabaseProblem | None] = []

    def record() -> None:
        write(patient, 2)
        recorded.append(database.write_problem)

    thread = threading.Thread(target=record)
    thread.start()
    with pytest.raises(DatabaseBusy):
        write(database.within(0.05))
    other.execute("ROLLBACK")
    other.close()
    thread.join()
    assert recorded == [None]

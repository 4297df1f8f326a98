"""Transactions: one commit at the boundary, real locks and a really full database become typed errors."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tuner_service.db.clock import new_id, now
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.db.queries import devices
from tuner_service.errors import DatabaseBusy, DatabaseFull, NotFound


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'ledger.sqlite3'}", lock_wait_seconds=0.2)
    upgrade(database)
    yield database
    database.close()


def spec(name: str, **more: object) -> dict[str, object]:
    return {"id": name, "kind": "cpu", **more}


def seen(database: Database) -> list[str]:
    with database.read() as session:
        return [device["id"] for device in devices.list_devices(session)]


def test_a_write_is_stored_as_a_whole_or_not_at_all(database: Database) -> None:
    with database.write() as session:
        devices.seen_device(session, spec("one"))

    def fail() -> None:
        with database.write() as session:
            devices.seen_device(session, spec("two"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert seen(database) == ["one"]


def test_a_read_never_stores(database: Database) -> None:
    with database.read() as session:
        devices.seen_device(session, spec("one"))
        session.flush()
    assert seen(database) == []


def test_a_lock_held_by_another_process_is_waited_for_then_named(database: Database) -> None:
    other = sqlite3.connect(database.url.database or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseBusy, match="locked"), database.write():
        raise AssertionError("the block must not run without the lock")
    assert seen(database) == []  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    with database.write() as session:
        devices.seen_device(session, spec("after"))
    assert seen(database) == ["after"]


def test_writers_of_one_process_take_turns(database: Database) -> None:
    patient = Database(database.url.render_as_string(hide_password=False))

    def add(number: int) -> None:
        with patient.write() as session:
            count = len(devices.list_devices(session))
            devices.seen_device(session, spec(f"{count:02d}"))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen(database) == [f"{number:02d}" for number in range(12)]
    patient.close()


def test_a_full_database_is_a_typed_error_and_what_was_stored_stays(database: Database) -> None:
    with database.write() as session:
        devices.seen_device(session, spec("one"))

    def overfill() -> None:
        with database.write() as session:
            pages = session.execute(text("PRAGMA page_count")).scalar_one()
            session.execute(text(f"PRAGMA max_page_count = {pages}"))
            devices.seen_device(session, spec("two", filler="x" * 1_000_000))

    with pytest.raises(DatabaseFull, match="full"):
        overfill()
    assert seen(database) == ["one"]
    database.close()  # the limit was the connection's
    with database.write() as session:
        devices.seen_device(session, spec("three"))
    assert seen(database) == ["one", "three"]


def test_numbers_that_are_not_finite_become_their_names(database: Database) -> None:
    with database.write() as session:
        devices.seen_device(session, spec("one", got=[float("nan"), float("-inf"), 1.5]))
    with database.read() as session:
        assert devices.get_device(session, "one")["got"] == ["nan", "-inf", 1.5]


def test_a_missing_device_is_not_found(database: Database) -> None:
    with database.read() as session, pytest.raises(NotFound, match="no device 'none'"):
        devices.get_device(session, "none")


def test_ids_sort_by_creation_and_never_repeat() -> None:
    ids = [new_id("trl") for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert all(len(id_) == 30 and id_.startswith("trl_") for id_ in ids)


def test_timestamps_are_rfc_3339_utc() -> None:
    stamp = now()
    assert stamp.endswith("Z")
    assert len(stamp) == len("2026-01-01T00:00:00.000000Z")

"""One embedded service per database, whatever the data directories are."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tuner_service.db.engine import Database
from tuner_service.db.sole_use import SoleUse
from tuner_service.errors import DatabaseInUse, DatabaseUnavailable

PATIENCE_SECONDS = 20.0


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shared/ledger.sqlite3"


def test_a_second_service_on_one_file_is_refused_with_the_pid(sqlite: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    first, second = (SoleUse(Database(sqlite), within=tmp_path / name) for name in ("a", "b"))
    first.take()
    with pytest.raises(DatabaseInUse, match=r"ledger\.sqlite3 is in use by the service with pid \d+"):
        second.take()
    assert first.held
    first.give_back()
    first.give_back()
    second.take()
    second.give_back()


def test_a_file_in_the_locked_data_directory_needs_no_other_lock(sqlite: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    SoleUse(Database(sqlite), within=tmp_path / "shared").take()
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_folder_that_is_not_there_is_said_so(sqlite: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="No such file"):
        SoleUse(Database(sqlite)).take()


def test_a_second_service_on_one_server_is_refused_until_the_first_is_gone(postgres_url: str) -> None:
    begins = threading.Event()
    databases = [Database(postgres_url) for _ in range(2)]
    first = SoleUse(databases[0], gained=begins.set)
    second = SoleUse(databases[1], patience_seconds=0.2)
    try:
        first.take()
        assert first.held
        assert begins.wait(PATIENCE_SECONDS)
        with pytest.raises(DatabaseInUse, match="TUNER_ENGINE=postgres"):
            second.take()
        assert not second.held
    finally:
        second.give_back()
        first.give_back()
    third = SoleUse(databases[1])
    third.take()
    third.give_back()
    for database in databases:
        database.close()

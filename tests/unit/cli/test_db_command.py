"""``tuner db``: what it finds, what it does, what it says, and its exit statuses; on real databases."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli.commands.demo import _renew
from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.main import run
from tuner_service.db.migrate import revisions
from tuner_service.settings import Settings

OLD = Path(__file__).parents[2] / "migration" / "fixtures" / "0004.sqlite.sql.gz"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory of an earlier version; commands take it for theirs."""
    folder = tmp_path / "data"
    folder.mkdir()
    connection = sqlite3.connect(folder / "tuner.sqlite3")
    connection.executescript(gzip.decompress(OLD.read_bytes()).decode())
    connection.close()
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    monkeypatch.setenv("TUNER_DATA_DIR", str(folder))
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status = run(["db", *arguments, "--json"])
    out = capsys.readouterr().out
    return status, json.loads(out) if out else None


def test_an_earlier_database_is_checked_and_brought_up(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = answer(capsys, "check")
    assert status == ExitStatus.NEGATIVE
    assert (found["state"], found["revision"], found["head"]) == ("outdated", "0004", revisions()[-1])
    assert found["pending"][0] == "0005"
    assert found["message"].endswith(f"back it up, then type: tuner db upgrade --data-dir {old}")
    status, done = answer(capsys, "upgrade")
    assert status == ExitStatus.OK
    assert (done["state"], done["before"], done["applied"]) == ("ready", "0004", found["pending"])
    assert answer(capsys, "check")[0] == ExitStatus.OK
    assert run(["db", "upgrade"]) == ExitStatus.OK
    assert "nothing to do" in capsys.readouterr().out


def test_nothing_is_made_by_looking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "nothing"
    status, found = answer(capsys, "check", "--data-dir", str(where))
    assert (status, found["state"], found["revision"]) == (ExitStatus.NEGATIVE, "empty", None)
    assert not where.exists()
    assert answer(capsys, "upgrade", "--data-dir", str(where))[0] == ExitStatus.OK
    assert (where / "tuner.sqlite3").exists()


def test_a_running_service_keeps_its_database(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tuner_service.workers.datadir import DataDir

    taken = DataDir(old)
    taken.lock()
    try:
        assert run(["db", "upgrade"]) == ExitStatus.BAD_INPUT
    finally:
        taken.unlock()
    assert "is in use by the service with pid" in capsys.readouterr().err
    assert answer(capsys, "check")[1]["revision"] == "0004"


def test_a_newer_database_is_left_alone(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(old / "tuner.sqlite3")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    status, found = answer(capsys, "check")
    assert (status, found["state"], found["pending"]) == (ExitStatus.NEGATIVE, "newer", [])
    assert run(["db", "upgrade"]) == ExitStatus.NEGATIVE
    assert "at revision 9999, which this version" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("check", "upgrade"):
        assert run(["db", word, "--database-url", "postgresql://tuner:secret@127.0.0.1:1/tuner"]) == (
            ExitStatus.UNREACHABLE
        )
        said = capsys.readouterr().err
        assert "refused" in said
        assert "secret" not in said
    assert run(["db", "check", "--database-url", "foo://x"]) == ExitStatus.BAD_INPUT
    assert "TUNER_DATABASE_URL" in capsys.readouterr().err


def test_postgresql_is_set_up_on_purpose(empty_postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = answer(capsys, "check", "--database-url", empty_postgres_url)
    assert (status, found["state"], found["database"]) == (ExitStatus.NEGATIVE, "empty", empty_postgres_url)
    assert found["message"] == "it is not set up yet; type: tuner db upgrade"
    status, done = answer(capsys, "upgrade", "--database-url", empty_postgres_url)
    assert (status, done["applied"]) == (ExitStatus.OK, revisions())
    assert answer(capsys, "check", "--database-url", empty_postgres_url)[0] == ExitStatus.OK


def test_the_demo_renews_its_own_data(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _renew(old)
    assert "bringing it to this one's schema" in capsys.readouterr().err
    assert answer(capsys, "check")[1]["state"] == "ready"
    _renew(old)
    assert capsys.readouterr().err == ""


def test_the_command_that_settings_name_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(data_dir=tmp_path / "of mine")
    assert settings.upgrade_command == f"tuner db upgrade --data-dir '{tmp_path}/of mine'"
    assert Settings(database_url="postgresql://x/y").upgrade_command == "tuner db upgrade"

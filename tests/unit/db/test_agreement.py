"""What all processes of a deployment must have alike is recorded by the first, compared by all, changed on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from search.errors import InvalidInput
from tuner_service.app import create_app
from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.main import run
from tuner_service.db.agreement import AGREED, agree, agreed_values, change
from tuner_service.db.engine import Database
from tuner_service.errors import SettingsDisagree
from tuner_service.settings import Settings

OTHERS: dict[str, Any] = {
    "artifacts": "/shared/artifacts",
    "max_artifact_bytes": 2**20,
    "worker_lost_seconds": 60.0,
}
"""Other values than the defaults."""


@pytest.fixture
def settings(postgres_url: str, tmp_path: Path) -> Callable[..., Settings]:
    """Of a process of the deployment."""
    return lambda **given: Settings(
        **({"engine": "postgres", "database_url": postgres_url, "data_dir": tmp_path} | given)
    )


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    opened = Database(postgres_url)
    yield opened
    opened.close()


@pytest.mark.parametrize("field", OTHERS)
def test_a_process_with_another_value_is_refused_with_what_to_type(
    database: Database, settings: Any, field: str
) -> None:
    agree(database, settings(), who="tuner serve a:1")
    agree(database, settings(), who="tuner worker b:2")
    theirs, other = agreed_values(settings()), settings(**{field: OTHERS[field]})
    variable = f"TUNER_{field}".upper()
    own = agreed_values(other)[variable]
    with pytest.raises(SettingsDisagree) as refused:
        agree(database, other, who="tuner worker c:3")
    said = str(refused.value)
    assert refused.value.variables == (variable,)
    assert said.startswith(f"{variable} is {own} here, and {theirs[variable]} for all processes")
    assert "by tuner serve a:1" in said
    assert f"tuner db settings --set {variable}={own}" in said
    change(database, {variable: own}, who="somebody")
    agree(database, other, who="tuner worker c:3")
    with pytest.raises(SettingsDisagree, match="by somebody"):
        agree(database, settings(), who="tuner serve a:4")


def test_what_means_the_same_is_the_same(database: Database, settings: Any) -> None:
    agree(database, settings(artifacts="/shared/artifacts", worker_lost_seconds=30), who="a")
    agree(database, settings(artifacts="/shared/artifacts/", worker_lost_seconds=30.0), who="b")
    assert {name.removeprefix("TUNER_").lower() for name in AGREED} == {*OTHERS, "engine"}


def test_an_embedded_service_does_not_come_between_processes_that_work_together(
    database: Database, settings: Any
) -> None:
    alone = settings(engine="embedded", worker_lost_seconds=60)
    agree(database, alone, who="tuner serve a:1", grows=True)
    with pytest.raises(SettingsDisagree, match="TUNER_ENGINE is postgres here, and embedded for all"):
        agree(database, settings(), who="tuner worker b:2")
    running = database.engine.connect()  # the embedded service's
    with pytest.raises(SettingsDisagree, match="TUNER_ENGINE is postgres here"):
        agree(database, settings(), who="tuner serve b:2", grows=True)
    running.close()
    database.engine.dispose()
    agree(database, settings(), who="tuner serve b:2", grows=True)
    agree(database, settings(), who="tuner worker b:3")
    with pytest.raises(SettingsDisagree, match="TUNER_ENGINE is embedded here, and postgres for all"):
        agree(database, alone, who="tuner serve a:1", grows=True)


def test_nothing_is_changed_while_processes_run(database: Database, settings: Any) -> None:
    agree(database, settings(), who="a")
    with database.engine.connect(), pytest.raises(SettingsDisagree, match="1 session in the database"):
        change(database, {"TUNER_WORKER_LOST_SECONDS": "60"}, who="b")
    agree(database, settings(), who="a")


def test_processes_count_whatever_their_url_names_them(postgres_url: str, settings: Any) -> None:
    url = f"{postgres_url}?application_name=mine"
    named = Database(url)
    agree(named, settings(database_url=url, engine="embedded"), who="tuner serve a:1", grows=True)
    with named.engine.connect():
        with pytest.raises(SettingsDisagree, match="1 session in the database"):
            change(named, {"TUNER_ENGINE": "postgres"}, who="b")
        with pytest.raises(SettingsDisagree, match="TUNER_ENGINE is postgres here"):
            agree(named, settings(database_url=url), who="tuner serve b:2", grows=True)
    named.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TUNER_PORT", "80"),
        ("TUNER_WORKER_LOST_SECONDS", "1"),
        ("TUNER_ARTIFACTS", "local"),
        ("TUNER_ENGINE", "ray"),
    ],
)
def test_what_no_process_may_have_is_not_recorded(database: Database, settings: Any, name: str, value: str) -> None:
    agree(database, settings(), who="a")
    with pytest.raises(InvalidInput) as refused:
        change(database, {name: value}, who="b")
    assert refused.value.problems[0].allowed
    agree(database, settings(), who="a")


def test_the_service_and_the_worker_compare_as_they_start(
    database: Database, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agree(database, settings(), who="tuner serve a:1")
    parts = create_app(settings(worker_lost_seconds=60.0)).state.parts
    with pytest.raises(SettingsDisagree, match="TUNER_WORKER_LOST_SECONDS is 60 here, and 30"):
        parts.start()
    monkeypatch.setattr("tuner_service.workers.main.configure_logging", lambda level: None)
    monkeypatch.setenv("TUNER_ARTIFACTS", "s3://bucket/prefix")
    url = database.url.render_as_string(hide_password=False)
    assert run(["worker", "--database-url", url]) == ExitStatus.BAD_INPUT
    assert "TUNER_ARTIFACTS is s3://bucket/prefix here, and database for all" in capsys.readouterr().err


def test_the_command_shows_and_changes_what_is_recorded(
    database: Database, settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agree(database, settings(), who="tuner serve a:1")
    database.close()
    url = database.url.render_as_string(hide_password=False)
    command = ["db", "settings", "--database-url", url, "--json"]
    assert run(command) == 0
    shown = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["items"]}
    assert shown == agreed_values(settings())
    assert run([*command, "--set", "TUNER_WORKER_LOST_SECONDS=45", "--set", "TUNER_ARTIFACTS=/shared"]) == 0
    answer = capsys.readouterr()
    changed = {one["name"]: one["value"] for one in json.loads(answer.out)["items"]}
    assert "not moved" in answer.err
    assert changed == shown | {"TUNER_WORKER_LOST_SECONDS": "45", "TUNER_ARTIFACTS": "/shared"}
    assert run(["db", "settings", "--database-url", f"sqlite:///{tmp_path}/x.sqlite3"]) == ExitStatus.BAD_INPUT
    assert "has one process" in capsys.readouterr().err
    assert run([*command, "--set", "TUNER_PORT=80"]) == ExitStatus.BAD_INPUT
    assert "TUNER_PORT" in capsys.readouterr().err

"""Settings: environment, description, and which hosts may be bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search.errors import InvalidInput, ToolchainUnavailable
from search.lowering.cpu.toolchain import compiler
from search.measuring.device_lock import default_lock_dir
from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.main import run
from tuner_service.loopback import is_loopback
from tuner_service.settings import Settings, describe, load_settings


def test_every_setting_is_described_with_its_variable_and_unit(tmp_path: Path) -> None:
    rows = describe(Settings(data_dir=tmp_path))
    assert [row.name for row in rows] == [*Settings.model_fields, "cc", "nvcc", "cxx", "lock_dir"]
    for row in rows:
        assert row.variable == f"TUNER_{row.name.upper()}"
        assert row.description.endswith((".", ")")) or row.description
        json.dumps(row.document())
    described = {row.name: row for row in rows}
    assert described["data_dir"].value == tmp_path
    assert described["port"].default == 8000


def test_what_is_read_below_the_service_is_described_with_what_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described() -> dict[str, tuple[object, object]]:
        return {row.variable: (row.value, row.default) for row in describe(Settings(data_dir=tmp_path))}

    monkeypatch.delenv("TUNER_CC", raising=False)
    monkeypatch.delenv("TUNER_LOCK_DIR", raising=False)
    assert described()["TUNER_CC"] == ("gcc", "gcc")
    assert described()["TUNER_LOCK_DIR"] == (str(default_lock_dir()),) * 2
    monkeypatch.setenv("TUNER_CC", "")
    assert described()["TUNER_CC"] == ("gcc", "gcc")
    elsewhere = str(tmp_path / "no-such-gcc")
    monkeypatch.setenv("TUNER_CC", elsewhere)
    monkeypatch.setenv("TUNER_LOCK_DIR", str(tmp_path))
    assert described()["TUNER_CC"] == (compiler_wanted(), "gcc") == (elsewhere, "gcc")
    assert described()["TUNER_LOCK_DIR"][0] == str(default_lock_dir())


def compiler_wanted() -> str:
    """The compiler that the lowering asks for, as it says when there is none of that name."""
    with pytest.raises(ToolchainUnavailable) as refused:
        compiler()
    return str(refused.value).split("'")[1]


def test_the_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_MAX_BODY_BYTES", "2048")
    monkeypatch.setenv("TUNER_PORT", "9000")
    settings = Settings(port=0)
    assert (settings.max_body_bytes, settings.port) == (2048, 0)


def test_a_database_password_is_not_shown(tmp_path: Path) -> None:
    url = "postgresql://tuner:secret@db.example/tuner"
    rows = describe(Settings(data_dir=tmp_path, database_url=url))
    assert "secret" not in str([row.document() for row in rows])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)
    assert load_settings(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "tuner.example", ""])
def test_any_other_host_is_refused_with_the_reason(host: str) -> None:
    with pytest.raises(InvalidInput, match="API keys"):
        load_settings(host=host)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("nonsense", "not a database URL"),
        ("postgresql://tuner:secret@db:port/x", "not a database URL"),
        ("foo://tuner:secret@db/x", "'foo' is no kind"),
        ("mysql://tuner:secret@db/x", "'mysql' is no kind"),
        ("postgresql+nothing://tuner:secret@db/x", "'postgresql+nothing' is no known"),
        ("postgresql+psycopg2://tuner:secret@db/x", "not installed"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_a_database_url_that_cannot_be_used_is_named_without_its_password(url: str, fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_settings(database_url=url)
    (problem,) = caught.value.problems
    assert problem.field == "TUNER_DATABASE_URL"
    assert fault in problem.message
    assert "secret" not in str(problem.document())
    assert problem.value == url.replace("secret", "***")
    assert "postgresql://" in problem.allowed


def test_database_urls_that_can_be_used(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/x.sqlite3", "postgresql://tuner@db/x", "postgresql+psycopg://db/x"):
        assert load_settings(database_url=url).database_url == url
    assert load_settings(database_url="").resolved_database_url.startswith("sqlite:///")


WRONG = {
    "TUNER_HOST": ("0.0.0.0", "127.0.0.1"),
    "TUNER_PORT": ("99999", "a whole number, >= 0, <= 65535"),
    "TUNER_DATABASE_URL": ("foo://x", "sqlite"),
    "TUNER_LOG_LEVEL": ("loud", "DEBUG, INFO, WARNING, ERROR"),
    "TUNER_COMPILE_ONLY_DEVICES": ("cuda-sm_123", "none, or some of cuda-sm_80, cuda-sm_90, cuda-sm_100"),
    "TUNER_MAX_DIM": ("many", "a whole number, >= 1"),
    "TUNER_CHILD_TIMEOUT_SECONDS": ("inf", "a number, > 0, <= 86400"),
    "TUNER_SHUTDOWN_TIMEOUT_SECONDS": ("0", "a number, > 0, <= 86400"),
}


@pytest.mark.parametrize("command", [["settings"], ["serve", "--port", "0"], ["jobs"]])
@pytest.mark.parametrize("variable", WRONG)
def test_every_command_names_a_wrong_setting_in_the_same_way(
    variable: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    value, allowed = WRONG[variable]
    if variable == "TUNER_PORT":
        command = command[:1]
    monkeypatch.setenv("TUNER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv(variable, value)
    assert run(command) == ExitStatus.BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f'error: {variable} = "{value}": ')
    assert f"(allowed: {allowed}" in line
    assert list(tmp_path.iterdir()) == []


def test_every_wrong_setting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, (value, _) in WRONG.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert {problem.field for problem in caught.value.problems} == set(WRONG)


def test_artifacts_of_one_machine_are_refused_where_processes_exchange_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_ARTIFACTS", "local")
    assert load_settings().artifacts_place == "local"
    monkeypatch.setenv("TUNER_ENGINE", "postgres")
    monkeypatch.setenv("TUNER_DATABASE_URL", "postgresql://tuner@127.0.0.1/tuner")
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert [problem.field for problem in caught.value.problems] == ["TUNER_ARTIFACTS"]


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_PORT", "")
    monkeypatch.setenv("TUNER_DATA_DIR", "~/somewhere")
    settings = load_settings()
    assert settings.port == 8000
    assert settings.data_dir == Path.home() / "somewhere"


def test_compile_only_devices_are_names_with_commas_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().compile_only_names == ("cuda-sm_80", "cuda-sm_90", "cuda-sm_100")
    monkeypatch.setenv("TUNER_COMPILE_ONLY_DEVICES", "cuda-sm_90, cuda-sm_80,cuda-sm_90")
    assert load_settings().compile_only_names == ("cuda-sm_90", "cuda-sm_80")
    monkeypatch.setenv("TUNER_COMPILE_ONLY_DEVICES", "none")
    assert load_settings().compile_only_names == ()

"""Settings: environment, description, and which hosts may be bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search.errors import InvalidInput, ToolchainUnavailable
from search.lowering.cpu.toolchain import compiler
from search.measuring.device_lock import default_lock_dir
from tuner_service.app import require_loopback, serve
from tuner_service.settings import Settings, describe, is_loopback


def test_every_setting_is_described_with_its_variable_and_unit(tmp_path: Path) -> None:
    rows = describe(Settings(data_dir=tmp_path))
    assert [row.name for row in rows] == [*Settings.model_fields, "cc", "lock_dir"]
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
    require_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "tuner.example", ""])
def test_any_other_host_is_refused_with_the_reason(host: str) -> None:
    with pytest.raises(InvalidInput, match="API keys"):
        serve(Settings(host=host))

"""``tuner worker`` refuses what it cannot work with, and says what to type."""

from pathlib import Path

import pytest

from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.main import run


@pytest.fixture(autouse=True)
def _own_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TUNER_COMPILE_ONLY_DEVICES", "none")
    monkeypatch.delenv("TUNER_DATABASE_URL", raising=False)
    monkeypatch.setattr("tuner_service.workers.main.configure_logging", lambda level: None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--database-url postgresql://", "TUNER_ENGINE=postgres"]),
        (["--database-url", "mysql://u@h/d"], ["TUNER_DATABASE_URL"]),
        (["--name", "a host"], ["--name 'a host'", "letters, digits"]),
        (["--compile-only", "--compile-slots", "0"], ["--compile-slots 0", "1 to 256"]),
        (["--compile-only", "--device", "cuda-sm_90", "--device", "cpu"], ["--device 'cpu'", "measures nothing"]),
    ],
)
def test_what_it_cannot_use_is_refused_with_what_to_type(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", *arguments]) == ExitStatus.BAD_INPUT
    told = capsys.readouterr()
    assert told.out == ""
    assert [word for word in words if word not in told.err] == []


def test_a_database_without_our_schema_is_refused(empty_postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "--database-url", empty_postgres_url]) == ExitStatus.BAD_INPUT
    assert "tuner db upgrade" in capsys.readouterr().err


def test_artifacts_that_stay_on_its_machine_are_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_ARTIFACTS", "local")
    assert run(["worker", "--database-url", postgres_url, "--compile-only"]) == ExitStatus.BAD_INPUT
    assert "TUNER_ARTIFACTS=local" in capsys.readouterr().err


def test_a_database_that_does_not_answer_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://nobody@127.0.0.1:9/nothing"
    assert run(["worker", "--database-url", url]) == ExitStatus.UNREACHABLE
    assert "127.0.0.1" in capsys.readouterr().err


def test_a_device_that_the_host_has_not_is_refused_with_those_that_it_has(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "--database-url", postgres_url, "--device", "nvidia-h900"]) == ExitStatus.BAD_INPUT
    told = capsys.readouterr().err
    assert "--device" in told
    assert "nvidia-h900" in told
    assert "cpu" in told

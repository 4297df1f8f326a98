"""Results outlive an outage of the database: they are kept for a while, and recorded when it is back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tuner_service.db.engine import Database
from tuner_service.errors import DatabaseFull, DatabaseUnavailable
from tuner_service.workers import patience, perform
from tuner_service.workers.patience import patiently


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)


def away(times: int, error: Exception | None = None) -> Callable[[], str]:
    left = [times]

    def action() -> str:
        if left[0]:
            left[0] -= 1
            raise error or DatabaseUnavailable("away")
        return "done"

    return action


def test_it_is_tried_again_until_the_database_is_back() -> None:
    assert patiently(away(5), seconds=60.0, cancelled=lambda: False) == "done"


@pytest.mark.parametrize(
    ("action", "seconds", "cancelled", "error"),
    [
        (away(1), 0.0, False, DatabaseUnavailable),
        (away(1), 60.0, True, DatabaseUnavailable),
        (away(1, DatabaseFull("full")), 60.0, False, DatabaseFull),
        (away(1, KeyError("a bug")), 60.0, False, KeyError),
    ],
)
def test_there_is_an_end_to_it(action: Any, seconds: float, cancelled: bool, error: type[Exception]) -> None:
    with pytest.raises(error):
        patiently(action, seconds=seconds, cancelled=lambda: cancelled)


def test_a_task_that_ran_through_an_outage_records_everything_once(
    service: Any, submitted: str, database: Database, monkeypatch: pytest.MonkeyPatch, check_sum: Any
) -> None:
    service.worker._patience_seconds = 60.0
    calls = {"record_all": 0, "release": 0}

    def flaky(name: str) -> None:
        real = getattr(perform, name)

        def call(*words: Any, **more: Any) -> Any:
            calls[name] += 1
            if calls[name] % 3 == 1:
                raise DatabaseUnavailable("away before the question")
            answer = real(*words, **more)
            if calls[name] % 3 == 2:
                raise DatabaseUnavailable("away before the answer: it is stored all the same")
            return answer

        monkeypatch.setattr(perform, name, call)

    flaky("record_all")
    flaky("release")
    job = service.finish(submitted)
    assert job["state"] == "succeeded"
    assert job["cases"][0]["winner"]["ordinal"] == 3
    assert {trial["attempt"] for trial in service.trials(submitted)} == {1}
    assert len(service.case(job["id"], 0)["retimes"]) == 5
    assert check_sum(job)

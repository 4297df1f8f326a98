"""Progress: plain lines are sparse and complete, bars follow the counts, and Ctrl-C cancels the job."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
from rich.console import Console

from tuner_service.cli import progress
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.follow import follow
from tuner_service.cli.progress import PLAIN_PERIOD_SECONDS, BarReporter, PlainReporter, Silence
from tuner_service.client import Client


def job(*settled: bool, state: str = "running") -> dict[str, Any]:
    counts = {"enumerated": 24, "rejected": 4, "measured": 20, "checked": 0, "pending": 0, "not_run": 0}
    cases = [
        {
            "kernel": "softmax",
            "dims": {"rows": index, "cols": 7},
            "progress": counts,
            "state": "settled" if done else "running",
        }
        for index, done in enumerate(settled)
    ]
    return {"id": "job_1", "state": state, "cases": cases, "progress": counts}


def test_plain_lines_come_once_per_case_and_now_and_then() -> None:
    out = io.StringIO()
    with PlainReporter(Console(file=out, width=200)) as report:
        for _ in range(50):
            report(job(False, False))
        report(job(True, False))
        report(job(True, False))
        report(job(True, True, state="succeeded"))
    lines = [line.split("] ")[1] for line in out.getvalue().splitlines()]
    assert lines == [
        "running: 24 enumerated, 4 rejected, 20 measured, 0 pending; 0/2 cases done",
        "softmax 0×7 done: 20 measured, 4 rejected",
        "softmax 1×7 done: 20 measured, 4 rejected",
    ]


@pytest.mark.parametrize("reporter", [PlainReporter, BarReporter])
def test_what_a_job_waits_for_is_said_once(reporter: Any) -> None:
    out = io.StringIO()
    with reporter(Console(file=out, width=200, force_terminal=reporter is BarReporter)) as report:
        for reason in (None, "device x is unavailable", "device x is unavailable", None, "the database is away"):
            report({**job(False), "waiting": reason})
    assert out.getvalue().count("waiting: device x is unavailable") == 1
    assert out.getvalue().count("waiting: the database is away") == 1


def test_a_long_silence_says_what_is_under_way() -> None:
    now = [0.0]
    silence = Silence(lambda: now[0])

    def said(*seconds: float, **changes: Any) -> list[float | None]:
        found = []
        for now[0] in seconds:
            found.append(silence.lasts({**job(False), **changes}))
        return found

    assert said(0, 1, PLAIN_PERIOD_SECONDS - 1) == [None, None, None]
    assert said(PLAIN_PERIOD_SECONDS, 17, 2 * PLAIN_PERIOD_SECONDS) == [15.0, None, 30.0], "once in each period"
    assert said(31, 46, waiting="device x is unavailable") == [None, None], "that was said already"
    assert said(60, 61) == [None, 15.0]
    assert said(62, cases=job(True)["cases"]) == [None], "something came of it"


@pytest.mark.parametrize("reporter", [PlainReporter, BarReporter])
def test_what_is_under_way_is_named(reporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_PERIOD_SECONDS", 0.0)
    out = io.StringIO()
    with reporter(Console(file=out, width=200, force_terminal=reporter is BarReporter)) as report:
        for _ in range(2):
            report({**job(False), "in_flight": [{"step": "build", "trials": 4}, {"step": "baseline", "trials": 0}]})
    assert "compiling 4, measuring a baseline" in out.getvalue()


def test_bars_show_each_case_with_its_counts() -> None:
    out = io.StringIO()
    with BarReporter(Console(file=out, width=160, force_terminal=True)) as report:
        report(job(False, True))
    text = out.getvalue()
    assert "softmax 0×7" in text
    assert "softmax 1×7" in text
    assert "24/24" in text
    assert "4 rejected, 20 measured selecting" in text
    assert "4 rejected, 20 measured done" in text


def test_ctrl_c_cancels_the_job_in_order() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        if len(asked) == 1:
            raise KeyboardInterrupt
        return httpx.Response(200, json=job(True, state="cancelled"))

    client = Client("http://127.0.0.1:1", transport=httpx.MockTransport(handler))
    with client, pytest.raises(CommandError) as raised:
        follow(client, "job_1", quiet=True)
    assert raised.value.status == ExitStatus.INTERRUPTED
    assert asked == ["GET /v1/jobs/job_1", "POST /v1/jobs/job_1/cancel", "GET /v1/jobs/job_1"]


def test_ctrl_c_as_soon_as_the_job_is_named_cancels_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    said: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        return httpx.Response(200, json=job(True, state="cancelled"))

    def say(text: str) -> None:
        said.append(text)
        if text == "job_1: 24 candidates":
            raise KeyboardInterrupt

    monkeypatch.setattr("tuner_service.cli.follow.say", say)
    client = Client("http://127.0.0.1:1", transport=httpx.MockTransport(handler))
    with client, pytest.raises(CommandError) as raised:
        follow(client, "job_1", "job_1: 24 candidates", quiet=True)
    assert raised.value.status == ExitStatus.INTERRUPTED
    assert asked[0] == "POST /v1/jobs/job_1/cancel"
    assert said[-1] == "job_1 cancelled; what was measured is kept"

"""What commands say about a job on a compile-only device: no times, no winner, what fits and what spills."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tuner_service.cli import results, untimed
from tuner_service.cli.main import run
from tuner_service.cli.progress import PlainReporter
from tuner_service.cli.show import show_results

DEVICE = {"id": "cuda-sm_90", "kind": "cuda-sm_90", "name": "NVIDIA sm_90 (compile-only)", "timed": False}
PROGRESS = {"enumerated": 4, "rejected": 1, "measured": 0, "checked": 3, "pending": 0, "not_run": 0}


@pytest.fixture
def job(documents: Any) -> dict[str, Any]:
    found: dict[str, Any] = documents.job(device=documents.device(**DEVICE), progress=PROGRESS)
    found["request"]["baselines"] = []
    found["cases"][0] |= {"winner": None, "reference": None, "tie_set": [], "baselines": {}, "progress": PROGRESS}
    return found


@pytest.fixture
def checked(documents: Any) -> list[dict[str, Any]]:
    def one(trial_id: str, registers: int, **changes: Any) -> dict[str, Any]:
        code = {"registers": registers, "spill_bytes": changes.pop("spill", 0), "shared_bytes": 128}
        code |= {"reload_merged": True} if changes.pop("merged", False) else {}
        found: dict[str, Any] = documents.trial(trial_id, outcome="checked", timing=None, code=code, **changes)
        return found

    return [
        one("trl_a", 24),
        one("trl_b", 255, spill=96),
        one("trl_c", 24, same_code_as="trl_a", merged=True),
        documents.rejected("trl_d"),
    ]


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_table_counts_codes_registers_spills_and_merged_reloads(job: Any, checked: Any) -> None:
    row = untimed.untimed_row(job["cases"][0], PROGRESS, checked)
    assert dict(zip(untimed.UNTIMED_COLUMNS, row, strict=True)) == {
        "case": "rms_norm 4×33",
        ">candidates": "4",
        ">rejected": "1",
        ">checked": "3",
        ">machine codes": "2",
        ">registers": "24–255",
        ">spilling": "1",
        ">merged reloads": "1",
    }


def test_results_claim_no_winner_and_show_no_time(job: Any, checked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    show_results(job, checked)
    text = shown(capsys)
    assert "no winner is claimed" in text
    assert "never timed" in text
    assert "private_budget" in text
    assert "median" not in text
    assert "torch" not in text


def test_the_answer_is_yes_when_something_was_right(job: Any) -> None:
    assert results.shortfalls(job) == []
    job["cases"][0]["progress"] = {**PROGRESS, "checked": 0, "rejected": 4}
    (short,) = results.shortfalls(job)
    assert short == "rms_norm 4×33 has no candidate that was built and right: all were rejected"


def test_progress_counts_what_was_checked(job: Any) -> None:
    out = io.StringIO()
    with PlainReporter(Console(file=out, width=200)) as report:
        report({**job, "state": "running"})
    assert "4 enumerated, 1 rejected, 3 checked, 0 pending" in out.getvalue()
    assert "rms_norm 4×33 done: 3 checked, 1 rejected" in out.getvalue()


def test_trials_show_registers_beside_planned_scalars(
    service: Any, checked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answer("GET /v1/jobs/job_1/trials", {"items": checked, "next": None, "total": 4})
    words = ["--no-spills", "--max-registers", "255", "--sort", "-registers", "--url", service.url]
    assert run(["trials", "job_1", *words]) == 0
    _, _, query, _ = service.asked[-1]
    assert query.items() >= {"spills": "false", "max_registers": "255", "sort": "-registers"}.items()
    text = shown(capsys)
    heads, *rows = text.splitlines()
    assert heads.index("private scalars") < heads.index("registers") < heads.index("spill bytes")
    assert "255" in rows[1]
    assert "merged" in rows[2]
    assert "same code as trl_a" in rows[2]


def test_trials_of_a_cpu_have_no_such_columns(service: Any, documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.answer("GET /v1/jobs/job_1/trials", {"items": [documents.trial()], "next": None, "total": 1})
    assert run(["trials", "job_1", "--url", service.url]) == 0
    assert "registers" not in shown(capsys)

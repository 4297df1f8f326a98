"""Rows of the result table, rejections by reason, and when the answer is not a plain yes."""

from __future__ import annotations

from typing import Any

import pytest

from tuner_service.cli import results
from tuner_service.cli.show import show_results


def test_a_row_has_every_column_of_the_table(documents: Any) -> None:
    job = documents.job()
    row = results.result_row(job["cases"][0], {"enumerated": 3, "rejected": 1, "measured": 2}, "torch_eager")
    named = dict(zip(results.result_columns("torch_eager"), row, strict=True))
    assert named == {
        "case": "rms_norm 4×33",
        ">candidates": "3",
        ">rejected": "1",
        ">measured": "2",
        "winner": "W32 reload private simd:all",
        ">median": "3 µs",
        ">winner / torch_eager": "0.30 [0.25, 0.35]",
        ">ties": "2",
        ">regret": "5.0 %",
        ">noise floor": "2.0 %",
    }


def test_a_case_without_a_winner_has_none(documents: Any) -> None:
    case = {**documents.job()["cases"][0], "winner": None, "error": "machine code differs", "tie_set": []}
    counts = {"enumerated": 3, "rejected": 3, "measured": 0}
    assert results.result_row(case, counts, "torch_eager")[4] == "none"
    assert results.result_row({**case, "state": "running"}, counts, "torch_eager")[4] == "not yet"
    assert results.baseline_ratio(case, "torch_eager") is None


def test_a_ratio_is_paired_from_raw_rounds(documents: Any) -> None:
    case = documents.job()["cases"][0]
    samples = {"timing": {"device_batch": documents.phase([4.0, 2.0, 8.0])}, "kernel_seconds": [1.0, 1.0, 1.0]}
    case["baselines"]["torch_eager"] = samples
    assert results.baseline_ratio(case, "torch_eager") == {"median": 0.25, "min": 0.125, "max": 0.5}
    case["baselines"]["torch_eager"] = {"error": "cannot be expressed", "timing": {}, "kernel_seconds": []}
    assert results.baseline_ratio(case, "torch_eager") is None
    assert results.baseline_ratio(case, "torch_compile") is None


def test_rejections_are_counted_by_stage_and_reason_most_frequent_first(documents: Any) -> None:
    trials = [
        documents.rejected("a", stage="compile", reason="gcc"),
        documents.rejected("b"),
        documents.rejected("c"),
        documents.trial("d"),
        {**documents.rejected("default"), "in_space": False},
    ]
    assert results.rejection_rows(trials) == [["constraints", "private_budget", "2"], ["compile", "gcc", "1"]]


def test_candidates_that_have_no_row_yet_are_counted(documents: Any, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"enumerated": 4321, "rejected": 0, "measured": 0, "checked": 0, "pending": 4321, "not_run": 0}
    job = documents.job("queued")
    job["cases"][0] |= {"state": "queued", "winner": None, "baselines": {}, "progress": counts}
    show_results(job, [])
    assert "4321" in capsys.readouterr().out


@pytest.mark.parametrize("error", ["disk full", {"detail": "disk full"}])
def test_a_failed_job_is_a_shortfall_with_its_reason(documents: Any, error: Any) -> None:
    assert results.shortfalls(documents.job("failed", error=error)) == ["job job_1 failed: disk full"]


def test_a_case_without_a_winner_is_a_shortfall(documents: Any) -> None:
    job = documents.job()
    assert results.shortfalls(job) == []
    job["cases"][0]["winner"] = None
    assert results.shortfalls(job) == ["rms_norm 4×33 has no winner: every candidate was rejected"]

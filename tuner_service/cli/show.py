"""Printing a job's results: the table of cases, the rejections by reason, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search.device.spec import why_untimed
from tuner_service.cli.output import print_line, print_table
from tuner_service.cli.results import NOTES, case_counts, rejection_rows, result_columns, result_row
from tuner_service.cli.untimed import UNTIMED_COLUMNS, UNTIMED_NOTES, is_timed, untimed_row
from tuner_service.cli.words import case_words


def show_results(job: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """The result table of a job, its rejections, and the notes that keep the figures honest."""
    if is_timed(job):
        _show_winners(job, case_counts(job))
    else:
        _show_untimed(job, trials)
    rejected = rejection_rows(trials)
    if rejected:
        print_line()
        print_table(["rejected at", "reason", ">candidates"], rejected)
    for case in job["cases"]:
        if case.get("error"):
            print_line(f"{case_words(case)} has no winner: {case['error']}")
    print_line()
    for note in NOTES if is_timed(job) else (f"{why_untimed(job['device'])}; no winner is claimed.", *UNTIMED_NOTES):
        print_line(note)
    for case in job["cases"]:
        for name, baseline in (case.get("baselines") or {}).items():
            if baseline.get("error"):
                print_line(f"{name} was not measured for {case_words(case)}: {baseline['error']}")


def _show_winners(job: Mapping[str, Any], counts: Sequence[Mapping[str, int]]) -> None:
    baselines = job["request"].get("baselines") or ["torch_eager"]
    rows = [result_row(case, count, baselines[0]) for case, count in zip(job["cases"], counts, strict=True)]
    print_table(result_columns(baselines[0]), rows)
    for other in baselines[1:]:
        rows = [result_row(case, count, other) for case, count in zip(job["cases"], counts, strict=True)]
        print_line()
        print_table(["case", "winner", f">winner / {other}"], [[row[0], row[4], row[6]] for row in rows])


def _show_untimed(job: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    by_case: list[list[Mapping[str, Any]]] = [[] for _ in job["cases"]]
    for trial in trials:
        by_case[trial["case_index"]].append(trial)
    counts = case_counts(job)
    rows = [untimed_row(*case) for case in zip(job["cases"], counts, by_case, strict=True)]
    print_table(UNTIMED_COLUMNS, rows)

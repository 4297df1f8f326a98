"""Printing a job's results: the table of cases, the rejections by reason, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner_service.cli.output import print_line, print_table
from tuner_service.cli.results import NOTES, case_counts, rejection_rows, result_columns, result_row
from tuner_service.cli.words import case_words


def show_results(job: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """The result table of a job, its rejections, and the notes that keep the figures honest."""
    baselines = job["request"].get("baselines") or ["torch_eager"]
    counts = case_counts(job, trials)
    rows = [result_row(case, count, baselines[0]) for case, count in zip(job["cases"], counts, strict=True)]
    print_table(result_columns(baselines[0]), rows)
    for other in baselines[1:]:
        rows = [result_row(case, count, other) for case, count in zip(job["cases"], counts, strict=True)]
        print_line()
        print_table(["case", "winner", f">winner / {other}"], [[row[0], row[4], row[6]] for row in rows])
    rejected = rejection_rows(trials)
    if rejected:
        print_line()
        print_table(["rejected at", "reason", ">candidates"], rejected)
    for case in job["cases"]:
        if case.get("error"):
            print_line(f"{case_words(case)} has no winner: {case['error']}")
    print_line()
    for note in NOTES:
        print_line(note)
    for case in job["cases"]:
        for name, baseline in (case.get("baselines") or {}).items():
            if baseline.get("error"):
                print_line(f"{name} was not measured for {case_words(case)}: {baseline['error']}")

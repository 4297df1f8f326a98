"""What a finished job found, as rows for people. Pure: documents in, rows and sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from search.stats.compare import paired_ratios
from tuner_service.cli.untimed import is_timed, untimed_shortfalls
from tuner_service.cli.words import (
    NOTHING,
    candidate_words,
    case_words,
    median_seconds,
    percent_words,
    ratio_words,
    seconds_words,
)

RESULT_COLUMNS = (
    "case",
    ">candidates",
    ">rejected",
    ">measured",
    "winner",
    ">median",
    ">winner / {baseline}",
    ">ties",
    ">regret",
    ">noise floor",
)
NOTES = (
    "Ratios: winner's time / torch's, paired within interleaved rounds of this run; below 1 the winner is faster.",
    "[low, high] is the observed range of the rounds, not a confidence interval; medians need not divide to the ratio.",
    "ties: candidates that the samples cannot tell from the fastest. regret: what the score's choice would have lost",
    "against the fastest of this search; it is not an independent gain. These hold for this machine and toolchain.",
)


def baseline_ratio(case: Mapping[str, Any], baseline: str) -> dict[str, float] | None:
    """Winner / baseline over paired rounds as ``median, min, max``; None when it was not measured beside the winner."""
    found = (case.get("baselines") or {}).get(baseline)
    if not found or case.get("winner") is None:
        return None
    ratio = found.get("ratio")
    if ratio:
        return {word: float(ratio[word]) for word in ("median", "min", "max")}
    timing = (found.get("timing") or {}).get("device_batch")
    kernel = found.get("kernel_seconds") or ()
    if not timing or len(kernel) != len(timing["samples_seconds"]) or not kernel:
        return None
    paired = paired_ratios(kernel, timing["samples_seconds"])
    return {"median": paired.median, "min": paired.low, "max": paired.high}


def winner_seconds(case: Mapping[str, Any]) -> float | None:
    """The winner's median in the interleaved finals, else in the search."""
    finals = (case.get("finals") or {}).get("median_seconds") or {}
    winner = case.get("winner")
    if winner is None:
        return None
    return finals.get(winner["id"]) or median_seconds(winner)


def result_columns(baseline: str) -> list[str]:
    """Headings of the result table."""
    return [column.format(baseline=baseline) for column in RESULT_COLUMNS]


def result_row(case: Mapping[str, Any], progress: Mapping[str, int], baseline: str) -> list[str]:
    """One case of the result table."""
    winner = case.get("winner")
    ties = case.get("tie_set") or []
    return [
        case_words(case),
        str(progress["enumerated"]),
        str(progress["rejected"]),
        str(progress["measured"]),
        _winner_words(case),
        seconds_words(winner_seconds(case)),
        ratio_words(baseline_ratio(case, baseline)),
        str(len(ties)) if winner else NOTHING,
        percent_words(case.get("regret")),
        percent_words(case.get("noise_floor")),
    ]


def rejection_rows(trials: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Rejected trials counted by stage and reason, most frequent first; they add up to ``rejected`` of the cases.

    A default beside the space is in neither.
    """
    counts = Counter(
        (trial["stage"], trial["reason"]) for trial in trials if trial["outcome"] == "rejected" and trial["in_space"]
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [[str(stage), str(reason), str(count)] for (stage, reason), count in ordered]


def shortfalls(job: Mapping[str, Any]) -> list[str]:
    """Why the answer is not a plain yes: the job did not succeed, a case has no winner. Empty when all is well."""
    if job["state"] != "succeeded":
        return [f"job {job['id']} {job['state']}" + (f": {_error_text(job['error'])}" if job.get("error") else "")]
    if not is_timed(job):
        return untimed_shortfalls(job)
    return [
        f"{case_words(case)} has no winner: {case.get('error') or 'every candidate was rejected'}"
        for case in job["cases"]
        if case.get("winner") is None
    ]


def _error_text(error: Any) -> str:
    if isinstance(error, Mapping):
        return str(error.get("detail") or error.get("message") or error.get("reason") or dict(error))
    return str(error)


def case_counts(job: Mapping[str, Any]) -> list[Mapping[str, int]]:
    """Per case, ``enumerated = measured + checked + rejected + pending + not_run``: what has no row yet counts too."""
    return [case["progress"] for case in job["cases"]]


def _winner_words(case: Mapping[str, Any]) -> str:
    if case.get("winner"):
        return candidate_words(case["winner"]["candidate"])
    return "none" if case.get("state") == "settled" else "not yet"

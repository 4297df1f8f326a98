"""The JSON of a case within a job: its result so far and what it was concluded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search.stats.compare import paired_ratios
from search.stats.summary import median
from tuner_service.db.models import Case

SHOWN_EVENTS = ("baseline_measured", "finals_measured", "default_retimed", "revalidated")
"""Kinds of events of which a case's JSON says something."""


def case_document(
    case: Case,
    *,
    job_state: str,
    counts: Mapping[str, int],
    events: Sequence[Mapping[str, Any]],
    trials: Mapping[str, Mapping[str, Any]],
    best_id: str | None,
    default_id: str | None,
) -> dict[str, Any]:
    """A case as it stands. ``counts``: outcome → in-space trials; ``trials``: documents of those that are named."""
    result: Mapping[str, Any] = case.result or {}

    def named(trial_id: str | None) -> Mapping[str, Any] | None:
        return trials.get(trial_id) if trial_id else None

    return {
        "id": case.id,
        **case.document,
        "state": "settled" if case.settled else "running" if case.opened else "queued",
        "progress": _progress(case.enumerated, counts, ended=job_state in ("succeeded", "cancelled", "failed")),
        "space": case.space,
        "inert_knobs": case.inert_knobs,
        "winner": named(result.get("winner")),
        "reference": named(result.get("reference")),
        "default": named(default_id),
        "best": named(best_id),
        "tie_set": result.get("tie_set", []),
        "reference_tie_set": result.get("reference_tie_set", []),
        "noise_floor": result.get("noise_floor"),
        "regret": result.get("regret"),
        "predicted": result.get("predicted"),
        "error": result.get("error"),
        "untimed": result.get("untimed"),
        "baselines": {e["samples"]["name"]: _baseline(e["samples"]) for e in _of(events, "baseline_measured")},
        "finals": _finals(_of(events, "finals_measured")),
        "retimes": [event["timing"] for event in _of(events, "default_retimed")],
        "revalidated": {event["trial"]: {**event} for event in _of(events, "revalidated")},
    }


def _of(events: Sequence[Mapping[str, Any]], word: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event["event"] == word]


def _progress(enumerated: int, counts: Mapping[str, int], *, ended: bool) -> dict[str, int]:
    """Counts over the space; they always add up, also while candidates have no rows yet."""
    measured, checked, rejected = (counts.get(outcome, 0) for outcome in ("measured", "checked", "rejected"))
    rest = enumerated - measured - checked - rejected
    return {
        "enumerated": enumerated,
        "rejected": rejected,
        "measured": measured,
        "checked": checked,
        "pending": 0 if ended else rest - counts.get("not_run", 0),
        "not_run": rest if ended else counts.get("not_run", 0),
    }


def _baseline(samples: Mapping[str, Any]) -> dict[str, Any]:
    """A baseline's record with its median, and our kernel's ratio to it round by round (below 1: we are faster)."""
    batch = samples["timing"].get("device_batch") or {}
    ours, theirs = samples["kernel_seconds"], batch.get("samples_seconds", [])
    ratio = None
    if ours and len(ours) == len(theirs):
        paired = paired_ratios(ours, theirs)
        ratio = {
            "against": samples["kernel_id"],
            "median": paired.median,
            "min": paired.low,
            "max": paired.high,
        }
    return {**samples, "median_seconds": batch.get("median_seconds"), "ratio": ratio}


def _finals(events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The interleaved rounds that decided (the last ones with samples), with each finalist's median."""
    deciding = [event["samples"] for event in events if event["samples"]["samples_seconds"]]
    if not deciding:
        return None
    last = deciding[-1]
    return {
        "protocol": last["protocol"],
        "order": last["order"],
        "sittings": last.get("sittings", 1),
        "samples_seconds": last["samples_seconds"],
        "median_seconds": {trial: median(taken) for trial, taken in last["samples_seconds"].items() if taken},
        "started_at": last["started_at"],
        "finished_at": last["finished_at"],
    }

"""The JSON of a case within a job: its result so far and what it was concluded from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Text, cast

from search.stats.compare import paired_ratios
from search.stats.summary import median
from tuner_service.db.json_text import JsonText
from tuner_service.db.models import Case, CaseEvent

SHOWN_EVENTS = ("baseline_measured", "finals_measured", "revalidated")
"""Kinds of events of which a case's JSON says something."""
RETIMES = "default_retimed"
"""The kind of which a case has as many as its search is long; shown where they are asked for."""
CASE_COLUMNS = (
    Case.id,
    Case.job_id,
    Case.position,
    Case.document,
    Case.opened,
    Case.settled,
    Case.enumerated,
    Case.measured,
    Case.checked,
    Case.rejected,
    Case.result,
    cast(Case.space, Text).label("space"),
    cast(Case.inert_knobs, Text).label("inert_knobs"),
)
EVENT_COLUMNS = (CaseEvent.case_id, CaseEvent.kind, CaseEvent.name, cast(CaseEvent.document, Text).label("document"))
"""What :func:`case_document` reads of rows of cases and of their events."""


def case_document(
    case: Any,
    *,
    job_state: str,
    events: Sequence[Any],
    trials: Mapping[str, Mapping[str, Any]],
    best_id: str | None,
    default_id: str | None,
    retimes: bool,
) -> dict[str, Any]:
    """A case as it stands; records in it are JsonText. ``trials``: documents of those that are named; ``retimes``:
    whether to show how the default was timed again and again, if ``events`` have it."""
    result: Mapping[str, Any] = case.result or {}
    of_kind: dict[str, list[Any]] = {kind: [] for kind in (*SHOWN_EVENTS, RETIMES)}
    for event in events:
        of_kind[event.kind].append(event)
    baselines = [json.loads(event.document)["samples"] for event in of_kind["baseline_measured"]]
    finals = [json.loads(event.document)["samples"] for event in of_kind["finals_measured"]]

    def named(trial_id: str | None) -> Mapping[str, Any] | None:
        return trials.get(trial_id) if trial_id else None

    return {
        "id": case.id,
        "case_index": case.position,
        **case.document,
        "state": "settled" if case.settled else "running" if case.opened else "queued",
        "progress": progress(
            enumerated=case.enumerated,
            measured=case.measured,
            checked=case.checked,
            rejected=case.rejected,
            ended=has_ended(job_state),
        ),
        "space": JsonText(case.space),
        "inert_knobs": JsonText(case.inert_knobs),
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
        "baselines": {samples["name"]: _baseline(samples) for samples in baselines},
        "finals": _finals(finals),
        **({"retimes": [json.loads(event.document)["timing"] for event in of_kind[RETIMES]]} if retimes else {}),
        "revalidated": {event.name: JsonText(event.document) for event in of_kind["revalidated"]},
    }


def has_ended(job_state: str) -> bool:
    """Whether nothing about a job in this state changes any more."""
    return job_state in ("succeeded", "cancelled", "failed")


def progress(*, enumerated: int, measured: int, checked: int, rejected: int, ended: bool) -> dict[str, int]:
    """Counts over the space; they always add up, also while candidates have no rows yet. Of a job that has ended, what
    is left did not run."""
    rest = enumerated - measured - checked - rejected
    return {
        "enumerated": enumerated,
        "rejected": rejected,
        "measured": measured,
        "checked": checked,
        "pending": 0 if ended else rest,
        "not_run": rest if ended else 0,
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


def _finals(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The interleaved rounds that decided (the last ones with samples), with each finalist's median."""
    deciding = [taken for taken in samples if taken["samples_seconds"]]
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

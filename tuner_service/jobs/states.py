"""The states of jobs and trials, and the only moves between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
TrialOutcome = Literal["pending", "measured", "checked", "rejected", "not_run"]

JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    "queued": frozenset(("running", "failed", "cancelled")),
    "running": frozenset(("succeeded", "failed", "cancelled")),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
TRIAL_MOVES: Mapping[TrialOutcome, frozenset[TrialOutcome]] = {
    "pending": frozenset(("measured", "checked", "rejected", "not_run")),
    # A trial that was measured can still fail when the finals or a re-timing run it again.
    "measured": frozenset(("rejected",)),
    "checked": frozenset(),
    "rejected": frozenset(),
    "not_run": frozenset(),
}


def job_may_move(old: str, new: str) -> bool:
    """Whether a job may go from one state to another. KeyError for a state that is none."""
    return new in JOB_MOVES[old]  # type: ignore[index]


def job_has_ended(state: str) -> bool:
    """Whether no move is left. KeyError for a state that is none."""
    return not JOB_MOVES[state]  # type: ignore[index]


def trial_may_move(old: str, new: str) -> bool:
    """Whether a trial may go from one outcome to another. KeyError for an outcome that is none."""
    return new in TRIAL_MOVES[old]  # type: ignore[index]

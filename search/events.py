"""What happened to a case: facts that steps yield and a ledger stores. Frozen data; only the driver writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from search.documents import record_document, record_from_document
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import BaselineSamples, Checks, FinalsSamples, PhaseTiming, Timing
from search.outcome import Rejected


@dataclass(frozen=True, kw_only=True)
class Built:
    """A trial has machine code."""

    trial: str
    artifact: Artifact
    facts: CodeFacts
    lower_seconds: float
    compile_seconds: float


@dataclass(frozen=True, kw_only=True)
class TrialRejected:
    """A trial ended as rejected at compile, resources, runtime, timeout, correctness or lost_worker."""

    trial: str
    rejection: Rejected
    checks: Checks | None = None
    after_measured: bool = False
    """It had been measured and failed in a later run of the search (a re-timing): this replaces that outcome.

    Without it, and once there are finals, the ledger keeps the first outcome: a stale report undoes no measurement.
    """
    facts: CodeFacts | None = None
    """Of machine code that was built and refused: too many resources."""


@dataclass(frozen=True, kw_only=True)
class TrialMeasured:
    """A trial ended as measured. ``same_code_as`` names the trial whose timing it inherits."""

    trial: str
    timing: Timing
    checks: Checks
    overlapped: bool
    same_code_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrialChecked:
    """A trial ended as checked: built, simulated and compared with the oracle on a device that times nothing.

    ``same_code_as`` names the trial whose checks it inherits.
    """

    trial: str
    checks: Checks
    same_code_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class DefaultRetimed:
    """The default was timed once more, at some point of the search (device_batch)."""

    sequence: int
    timing: PhaseTiming


@dataclass(frozen=True, kw_only=True)
class FinalsMeasured:
    """The finalists were measured interleaved, nothing overlapping. ``samples.rejections`` ends those trials."""

    samples: FinalsSamples
    phases_only: bool = False
    """Only ``extra_phases`` (and rejections) count: a selected trial lacked its four phases. Decides nothing."""


@dataclass(frozen=True, kw_only=True)
class BaselineMeasured:
    """A baseline was measured beside the winner."""

    samples: BaselineSamples


@dataclass(frozen=True, kw_only=True)
class FreshBuilt:
    """A selected trial was lowered and compiled afresh in a new process, the artifact store bypassed."""

    trial: str
    artifact: Artifact | None
    plan: Mapping[str, Any] | None
    rejection: Rejected | None


@dataclass(frozen=True, kw_only=True)
class Revalidated:
    """A selected trial's fresh build was compared with the trial's record and checked against the oracle again."""

    trial: str
    same_source: bool
    same_machine_code: bool
    same_plan: bool
    checks: Checks | None
    rejection: Rejected | None = None

    @property
    def passed(self) -> bool:
        """Everything equal and every check passed."""
        return (
            self.same_source
            and self.same_machine_code
            and self.same_plan
            and self.rejection is None
            and self.checks is not None
            and self.checks.passed
        )


@dataclass(frozen=True, kw_only=True)
class CaseSettled:
    """The case's result. Every field is also derivable from the ledger."""

    winner: str | None
    reference: str | None
    tie_set: tuple[str, ...]
    reference_tie_set: tuple[str, ...]
    noise_floor: float | None
    regret: float | None
    predicted: str | None
    """The trial that the cost score would have chosen."""
    error: str | None = None
    untimed: str | None = None
    """Why nothing was timed, and so nothing can win: the device is compile-only. None on every other device."""


Event: TypeAlias = (
    Built
    | TrialRejected
    | TrialMeasured
    | TrialChecked
    | DefaultRetimed
    | FinalsMeasured
    | BaselineMeasured
    | FreshBuilt
    | Revalidated
    | CaseSettled
)

EVENTS: dict[str, type[Event]] = {
    "built": Built,
    "trial_rejected": TrialRejected,
    "trial_measured": TrialMeasured,
    "trial_checked": TrialChecked,
    "default_retimed": DefaultRetimed,
    "finals_measured": FinalsMeasured,
    "baseline_measured": BaselineMeasured,
    "fresh_built": FreshBuilt,
    "revalidated": Revalidated,
    "case_settled": CaseSettled,
}
"""Stable word of each event in JSON."""

_WORDS = {record: word for word, record in EVENTS.items()}


def event_document(event: Event) -> dict[str, Any]:
    """JSON form: the event's fields and its word under ``event``."""
    return {"event": _WORDS[type(event)], **record_document(event)}


def event_from_document(document: Mapping[str, Any]) -> Event:
    """Inverse of :func:`event_document`; KeyError for a word that this version does not know."""
    return record_from_document(EVENTS[document["event"]], document)

"""A Step: one thing that a case lacks, as a request. Data, and what drivers must know of it to hand it out.

Performing a step yields events (``search.events``) that the driver stores. Steps may be lost, repeated or done out of
order. Which are missing says ``search.steps``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from search.documents import record_document, record_from_document
from search.events import CaseSettled


@dataclass(frozen=True, kw_only=True)
class Build:
    """Lower and compile these trials in one batch. Compile queue; overlaps the search."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Check and time these trials, then the default once more. Device queue; may overlap compiling.

    ``trials`` may be empty (only re-time the default, ``retimes`` times).
    """

    trials: tuple[str, ...]
    retimes: int = 1
    first_retime_sequence: int = 0


@dataclass(frozen=True, kw_only=True)
class Check:
    """Simulate these trials and check them; nothing is timed. Compile queue: it takes cores, and no device."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShareCode:
    """These trials' machine code equals that of one which was measured: check them (never timed), inherit its timing.

    On a device that is not timed: of one that was checked; they inherit its checks. Device queue.
    """

    trials: tuple[tuple[str, str], ...]
    """(trial, trial whose code it shares)."""


@dataclass(frozen=True, kw_only=True)
class Finals:
    """Measure finalists interleaved in one child. Device queue, quiet (nothing overlaps).

    ``trials`` may be empty: only take all four phases of selected trials that lack them.
    """

    trials: tuple[str, ...]
    all_phases: tuple[str, ...]
    """Trials that also get all four phases: at least the provisional winner, best reload and default."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Measure a baseline side by side with the winner (None: alone). Device queue, quiet."""

    name: str
    against: str | None


@dataclass(frozen=True, kw_only=True)
class FreshBuild:
    """Lower and compile these trials in a new process, bypassing the artifact store. Compile queue."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Revalidate:
    """Compare fresh builds with the record and check them against the oracle. Device queue."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Settle:
    """Everything is there: write the case's result. Pure, done by the driver."""

    result: CaseSettled


Step: TypeAlias = Build | Measure | Check | ShareCode | Finals | Baseline | FreshBuild | Revalidate | Settle

STEPS: dict[str, type[Step]] = {
    "build": Build,
    "measure": Measure,
    "check": Check,
    "share_code": ShareCode,
    "finals": Finals,
    "baseline": Baseline,
    "fresh_build": FreshBuild,
    "revalidate": Revalidate,
    "settle": Settle,
}
"""Stable word of each step in JSON."""
_WORDS = {record: word for word, record in STEPS.items()}
Item = TypeVar("Item")
MEASURE_CHUNK = 8
"""Trials per Measure at most, and per ShareCode."""


def step_document(step: Step) -> dict[str, Any]:
    """JSON form: the step's fields and its word under ``step``."""
    return {"step": _WORDS[type(step)], **record_document(step)}


def step_from_document(document: Mapping[str, Any]) -> Step:
    """Inverse of :func:`step_document`; KeyError for a word that this version does not know."""
    return record_from_document(STEPS[document["step"]], document)


def step_key(step: Step) -> str:
    """Stable name of a step within its case: equal for equal requests, in any process."""
    text = json.dumps(step_document(step), sort_keys=True, separators=(",", ":"))
    return f"{_WORDS[type(step)]}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def conflicts(step: Step) -> frozenset[str]:
    """Trials that the step works on: two steps of the same queue that share one must not run at the same time."""
    match step:
        case Build() | Measure() | Check() | FreshBuild() | Revalidate():
            return frozenset(step.trials)
        case ShareCode():
            return frozenset(trial for trial, _ in step.trials)
        case Finals():
            return frozenset(step.trials + step.all_phases)
        case Baseline():
            return frozenset(() if step.against is None else (step.against,))
        case Settle():
            return frozenset()


def queue_of(step: Step) -> Literal["compile", "device", "driver"]:
    """Where the step is done: the compile pool, the device's one measuring slot, or at once by the driver."""
    if isinstance(step, Settle):
        return "driver"
    return "compile" if isinstance(step, Build | Check | FreshBuild) else "device"


def is_quiet(step: Step) -> bool:
    """Whether nothing may be compiled while the step runs. Drivers see to it, over all cases of a device."""
    return isinstance(step, Finals | Baseline)


def touched(in_flight: Sequence[Step], *kinds: type[Step]) -> frozenset[str]:
    """The trials that steps of these kinds in flight work on."""
    return frozenset().union(*(conflicts(step) for step in in_flight if isinstance(step, kinds)))


def batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """The items in their order, at most ``size`` together."""
    return [items[start : start + size] for start in range(0, len(items), size)]

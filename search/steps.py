"""What is missing? Pure: a case's ledger in, the next steps out. The pipeline and the service loop over it.

A step is a request, not a fact: performing it yields events (``search.events``) that the driver stores. Steps may be
lost, repeated or done out of order; asking again always gives what is still missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, TypeAlias, TypeVar

from search.documents import record_document, record_from_document
from search.events import CaseSettled
from search.ledger import CaseState as CaseState  # drivers know the ledger's types by this module
from search.ledger import TrialState as TrialState
from search.selection.contender import Contender
from search.selection.finalists import choose_finalists
from search.selection.noise import MINIMUM_RETIMES, noise_floor
from search.selection.regret import predict
from search.selection.winner import NOTHING, Selection, select

BUILD_BATCH = 12
"""Candidates per compiler call: the share of one candidate stops falling there (design/4)."""
MEASURE_CHUNK = 8
"""Trials per Measure at most, and per ShareCode."""


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
class ShareCode:
    """These trials' machine code equals an already measured one's: check them (never timed), inherit its timing."""

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


Step: TypeAlias = Build | Measure | ShareCode | Finals | Baseline | FreshBuild | Revalidate | Settle

STEPS: dict[str, type[Step]] = {
    "build": Build,
    "measure": Measure,
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
        case Build() | Measure() | FreshBuild() | Revalidate():
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
    return "compile" if isinstance(step, Build | FreshBuild) else "device"


def is_quiet(step: Step) -> bool:
    """Whether nothing may be compiled while the step runs. Drivers see to it, over all cases of a device."""
    return isinstance(step, Finals | Baseline)


def missing(state: CaseState, in_flight: Sequence[Step] = ()) -> tuple[Step, ...]:
    """Every step that can be started now, beside those in flight; empty when the case waits for one or is settled.

    Within the answer, and together with ``in_flight``, no trial is built or measured twice. The order is the one to
    work in. A lost step is simply no longer in flight.
    """
    if state.settled is not None or any(isinstance(step, Settle) for step in in_flight):
        return ()
    if any(trial.outcome == "pending" for trial in state.trials):
        return (*_builds(state, in_flight), *_measurements(state, in_flight))
    not_run = sum(trial.outcome == "not_run" for trial in state.trials)
    if not_run:
        return (Settle(result=_stopped(state, not_run)),)
    contenders = state.contenders()
    if not any(contender.in_space for contender in contenders):
        return _baselines(state, in_flight, winner=None) or _settle(state, in_flight, NOTHING, NOTHING, contenders)
    if any(isinstance(step, Build | Measure | ShareCode | Finals) for step in in_flight):
        return ()
    retimes = _retimes_lacking(state)
    if retimes is not None:
        return (retimes,)
    finals = _finals_lacking(state, contenders)
    if finals is not None:
        return (finals,)
    winner, reference = _selected(state, contenders)
    return (
        *_fresh(state, in_flight, winner, reference),
        *_baselines(state, in_flight, winner=winner.winner),
    ) or _settle(state, in_flight, winner, reference, contenders)


def _builds(state: CaseState, in_flight: Sequence[Step]) -> tuple[Build, ...]:
    """Batches of trials without machine code in canonical order, but the default first: the device waits for it."""
    busy = _touched(in_flight, Build)
    wanted = [t for t in state.trials if t.outcome == "pending" and t.artifact is None and t.id not in busy]
    wanted.sort(key=lambda trial: (not trial.is_default, trial.ordinal))
    return tuple(Build(trials=tuple(t.id for t in batch)) for batch in _batches(wanted, BUILD_BATCH))


def _measurements(state: CaseState, in_flight: Sequence[Step]) -> tuple[Step, ...]:
    """Trials with machine code: those of new code in chunks, those of measured code to share it.

    One of each code runs, the earliest in canonical order (the default before all); the others wait for its end. When
    the device is idle it starts on what there is; else, while builds are coming, only full chunks are worth a step.
    """
    default = state.default
    retimes = 1 if default is not None and default.outcome in ("pending", "measured") else 0
    if retimes and default is not None and default.artifact is None:
        return ()
    measured: dict[str, str] = {}
    for trial in state.trials:
        if trial.outcome == "measured" and trial.artifact is not None and trial.same_code_as is None:
            measured.setdefault(trial.artifact.artifact_sha256, trial.id)
    busy = _touched(in_flight, Measure, ShareCode)
    running = {t.artifact.artifact_sha256 for t in state.trials if t.id in busy and t.artifact is not None}
    alone: list[str] = []
    shared: list[tuple[str, str]] = []
    for trial in sorted(state.trials, key=lambda t: (not t.is_default, t.ordinal)):
        if trial.outcome != "pending" or trial.artifact is None or trial.id in busy:
            continue
        code = trial.artifact.artifact_sha256
        if code in measured:
            shared.append((trial.id, measured[code]))
        elif code not in running:
            running.add(code)
            alone.append(trial.id)
    idle = not any(queue_of(step) == "device" for step in in_flight)
    builds_coming = any(trial.outcome == "pending" and trial.artifact is None for trial in state.trials)
    size = _chunk_size(state)
    if builds_coming and (not idle or len(alone) > size):
        alone = alone[: len(alone) // size * size]
    if builds_coming and not idle:
        shared = shared[: len(shared) // MEASURE_CHUNK * MEASURE_CHUNK]
    first = _next_sequence(state, in_flight)
    return (
        *(
            Measure(trials=tuple(chunk), retimes=retimes, first_retime_sequence=first + retimes * number)
            for number, chunk in enumerate(_batches(alone, size))
        ),
        *(ShareCode(trials=tuple(chunk)) for chunk in _batches(shared, MEASURE_CHUNK)),
    )


def _chunk_size(state: CaseState) -> int:
    """Trials per Measure, such that the re-timings after each spread over the search."""
    timed = sum(
        not (t.rejection is not None and t.rejection.stage == "constraints") and t.same_code_as is None
        for t in state.trials
    )
    return max(1, min(MEASURE_CHUNK, ceil(timed / MINIMUM_RETIMES)))


def _next_sequence(state: CaseState, in_flight: Sequence[Step] = ()) -> int:
    recorded = max((retime.sequence + 1 for retime in state.retimes), default=0)
    reserved = (step.first_retime_sequence + step.retimes for step in in_flight if isinstance(step, Measure))
    return max(recorded, *reserved, 0)


def _retimes_lacking(state: CaseState) -> Measure | None:
    """Re-timings that the search did not give; a default that was rejected can give none."""
    default, lacking = state.default, MINIMUM_RETIMES - len(state.retimes)
    if default is None or default.outcome != "measured" or state.finals is not None or lacking <= 0:
        return None
    return Measure(trials=(), retimes=lacking, first_retime_sequence=_next_sequence(state))


def _finals_lacking(state: CaseState, contenders: Sequence[Contender]) -> Finals | None:
    """Finals if a finalist has no samples (one may have dropped out since); else phases that a selected trial lacks."""
    finalists = choose_finalists(contenders, floor=_floor(state))
    if state.finals is None or not set(finalists.trials) <= set(state.finals.samples.samples_seconds):
        return Finals(trials=finalists.trials, all_phases=finalists.provisional)
    winner, reference = _selected(state, contenders)
    code = {contender.id: contender.code for contender in contenders}
    selected = {code[trial] for trial in (winner.winner, reference.winner) if trial is not None}
    extra = state.finals.samples.extra_phases
    lacking = tuple(trial for trial in finalists.trials if code[trial] in selected and trial not in extra)
    return Finals(trials=(), all_phases=lacking) if lacking else None


def _selected(state: CaseState, contenders: Sequence[Contender]) -> tuple[Selection, Selection]:
    """Winner and reference by the finals."""
    assert state.finals is not None
    samples, sittings = state.finals.samples.samples_seconds, state.finals.samples.sittings
    return (
        select(samples, contenders, sittings=sittings),
        select(samples, contenders, sittings=sittings, reload_only=True),
    )


def _baselines(state: CaseState, in_flight: Sequence[Step], *, winner: str | None) -> tuple[Baseline, ...]:
    running = {step.name for step in in_flight if isinstance(step, Baseline)}
    lacking = (name for name in state.baselines_wanted if name not in state.baselines and name not in running)
    return tuple(Baseline(name=name, against=winner) for name in lacking)


def _fresh(
    state: CaseState, in_flight: Sequence[Step], winner: Selection, reference: Selection
) -> tuple[FreshBuild | Revalidate, ...]:
    """Fresh builds of winner and reference (one trial may be both), and the comparison of those that came."""
    selected = [t for t in dict.fromkeys((winner.winner, reference.winner)) if t is not None]
    building, comparing = _touched(in_flight, FreshBuild), _touched(in_flight, Revalidate)
    build = tuple(t for t in selected if t not in state.fresh and t not in building)
    built = (t for t in selected if t in state.fresh and state.fresh[t].artifact is not None)
    compare = tuple(t for t in built if t not in state.revalidated and t not in comparing)
    return (
        *((FreshBuild(trials=build),) if build else ()),
        *((Revalidate(trials=compare),) if compare else ()),
    )


def _settle(
    state: CaseState,
    in_flight: Sequence[Step],
    winner: Selection,
    reference: Selection,
    contenders: Sequence[Contender],
) -> tuple[Settle, ...]:
    """The result, once nothing is in flight. A selected trial whose fresh build failed is named and not served."""
    if in_flight:
        return ()
    prediction = predict(contenders)
    faults = {t: fault for t in (winner.winner, reference.winner) if t and (fault := _fault(state, t))}
    result = CaseSettled(
        winner=None if winner.winner in faults else winner.winner,
        reference=None if reference.winner in faults else reference.winner,
        tie_set=winner.tie_set,
        reference_tie_set=reference.tie_set,
        noise_floor=_floor(state),
        regret=prediction.regret if prediction else None,
        predicted=prediction.trial if prediction else None,
        error="; ".join(faults.values()) or None,
    )
    return (Settle(result=result),)


def _stopped(state: CaseState, not_run: int) -> CaseSettled:
    """A search that was cut short names no winner: what did not run might have won."""
    return CaseSettled(
        winner=None,
        reference=None,
        tie_set=(),
        reference_tie_set=(),
        noise_floor=_floor(state),
        regret=None,
        predicted=None,
        error=f"the search was stopped before {not_run} of {len(state.trials)} trials ran",
    )


def _fault(state: CaseState, trial: str) -> str | None:
    """What the fresh build of a selected trial did wrong."""
    fresh, check = state.fresh[trial], state.revalidated.get(trial)
    if check is None:
        reason = fresh.rejection.reason if fresh.rejection else "no artifact"
        return f"trial {trial}: its fresh build failed ({reason})"
    if check.passed:
        return None
    parts = {"source": check.same_source, "machine code": check.same_machine_code, "plan": check.same_plan}
    differing = [part for part, same in parts.items() if not same]
    if differing:
        return f"trial {trial}: the fresh build differs from the trial's record in {', '.join(differing)}"
    reason = check.rejection.reason if check.rejection else "its correctness check failed"
    return f"trial {trial}: the fresh build was not valid ({reason})"


def _floor(state: CaseState) -> float | None:
    return noise_floor([retime.timing.median_seconds for retime in state.retimes])


def _touched(in_flight: Sequence[Step], *kinds: type[Step]) -> frozenset[str]:
    return frozenset().union(*(conflicts(step) for step in in_flight if isinstance(step, kinds)))


def _batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]

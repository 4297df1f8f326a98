"""What is missing? Pure: a case's ledger in, the next steps out. The pipeline and the service loop over it.

A step is a request, not a fact: performing it yields events (``search.events``) that the driver stores. Steps may be
lost, repeated or done out of order; asking again always gives what is still missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from search.events import CaseSettled
from search.ledger import CaseState as CaseState  # drivers know the ledger's types by this module
from search.ledger import TrialState as TrialState
from search.selection.contender import Contender
from search.selection.finalists import choose_finalists
from search.selection.noise import MINIMUM_RETIMES, noise_floor
from search.selection.regret import predict
from search.selection.winner import NOTHING, Selection, select
from search.step import MEASURE_CHUNK, batches, touched
from search.step import Baseline as Baseline  # and the steps, which they perform
from search.step import Build as Build
from search.step import Check as Check
from search.step import Finals as Finals
from search.step import FreshBuild as FreshBuild
from search.step import Measure as Measure
from search.step import Revalidate as Revalidate
from search.step import Settle as Settle
from search.step import ShareCode as ShareCode
from search.step import Step as Step
from search.step import conflicts as conflicts
from search.step import is_quiet as is_quiet
from search.step import queue_of as queue_of
from search.step import step_document as step_document
from search.step import step_from_document as step_from_document
from search.step import step_key as step_key
from search.untimed import checks, nothing_timed

BUILD_BATCH = 12
"""Candidates per compiler call: the share of one candidate stops falling there (design/4)."""
FIRST_BUILD_BATCH = 4
"""Where a device waits, idle, for the first ones: it starts on these while the next are compiled. Of the second call
twice as many; the two are what one call would be."""
UNTIMED_BUILD_BATCH = 32
"""Where no device waits for the first ones, and the compiler is nvcc, whose call costs what 30 kernels do."""


def missing(state: CaseState, in_flight: Sequence[Step] = (), *, device_waits: bool = True) -> tuple[Step, ...]:
    """Every step that can be started now, beside those in flight; empty when the case waits for one or is settled.

    ``device_waits`` False: the device has other cases to do, and this one's first candidates are in no hurry. Within
    the answer, and together with ``in_flight``, no trial is built or measured twice. The order is the one to work in. A
    lost step is simply no longer in flight.
    """
    if state.settled is not None or any(isinstance(step, Settle) for step in in_flight):
        return ()
    if any(trial.outcome == "pending" for trial in state.trials):
        if state.untimed is not None:
            return (*checks(state, in_flight), *_builds(state, in_flight, hurried=False))
        return (*_builds(state, in_flight, hurried=device_waits), *_measurements(state, in_flight))
    not_run = sum(trial.outcome == "not_run" for trial in state.trials)
    if not_run:
        why = f"the search was stopped before {not_run} of {len(state.trials)} trials ran"
        return (Settle(result=_no_winner(state, why)),)
    if state.untimed is not None:
        return () if in_flight else (Settle(result=nothing_timed(state)),)
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


def _builds(state: CaseState, in_flight: Sequence[Step], *, hurried: bool) -> tuple[Build, ...]:
    """Batches of trials without machine code in canonical order, but the default first: the device waits for it."""
    busy = touched(in_flight, Build)
    wanted = [t for t in state.trials if t.outcome == "pending" and t.artifact is None and t.id not in busy]
    wanted.sort(key=lambda trial: (not trial.is_default, trial.ordinal))
    if not hurried:
        size = BUILD_BATCH if state.untimed is None else UNTIMED_BUILD_BATCH
        return tuple(Build(trials=tuple(t.id for t in batch)) for batch in batches(wanted, size))
    begun = len(busy) + sum(t.artifact is not None for t in state.trials)
    steps: list[Build] = []
    while wanted:
        size = min(FIRST_BUILD_BATCH + begun, BUILD_BATCH)
        steps.append(Build(trials=tuple(t.id for t in wanted[:size])))
        wanted, begun = wanted[size:], begun + size
    return tuple(steps)


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
    busy = touched(in_flight, Measure, ShareCode)
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
            for number, chunk in enumerate(batches(alone, size))
        ),
        *(ShareCode(trials=tuple(chunk)) for chunk in batches(shared, MEASURE_CHUNK)),
    )


def _chunk_size(state: CaseState) -> int:
    """Trials per Measure, such that the re-timings after each spread over the search."""
    timed = sum(
        not (t.rejection is not None and t.rejection.stage == "constraints")
        and (t.same_code_as is None or t.outcome == "rejected")
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
    building, comparing = touched(in_flight, FreshBuild), touched(in_flight, Revalidate)
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


def cut_short(state: CaseState, enumerated: int, why: str) -> CaseSettled:
    """The result of a case that goes no further, for the reason ``why``: it says where the search stood.

    ``enumerated``: candidates of the space; ``state`` may hold fewer as yet.
    """
    ended = sum(trial.in_space and trial.outcome != "pending" for trial in state.trials)
    if ended < enumerated or any(trial.outcome == "pending" for trial in state.trials):
        return _no_winner(state, f"{why} when {ended} of {enumerated} candidates had been tried")
    if state.finals is None:
        return _no_winner(state, f"{why} before the finals, which choose a winner")
    return _no_winner(state, f"{why} before the winner was built afresh, validated and compared with the baselines")


def _no_winner(state: CaseState, why: str) -> CaseSettled:
    """A search that was cut short names no winner: what did not run might have won."""
    return CaseSettled(
        winner=None,
        reference=None,
        tie_set=(),
        reference_tie_set=(),
        noise_floor=_floor(state),
        regret=None,
        predicted=None,
        error=why,
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

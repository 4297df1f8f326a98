"""A case's ledger: its trials and what happened to them. Pure: :func:`apply` gives events their one meaning.

The pipeline keeps a CaseState in memory, the service rebuilds one from its database; both ask ``search.steps`` what is
missing. Events may be repeated or late: the first outcome of a trial stands, and what is stale changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from search.device.spec import CacheContext
from search.events import (
    BaselineMeasured,
    Built,
    CaseSettled,
    DefaultRetimed,
    Event,
    FinalsMeasured,
    FreshBuilt,
    Revalidated,
    TrialChecked,
    TrialMeasured,
    TrialRejected,
)
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import Checks, Timing
from search.outcome import Rejected
from search.selection.contender import Contender
from search.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """One trial as the ledger knows it."""

    id: str
    ordinal: int
    """Canonical order within the case; an out-of-space default comes last."""
    candidate: Candidate
    in_space: bool
    is_default: bool
    outcome: Literal["pending", "measured", "checked", "rejected", "not_run"]
    private_scalars: int = 0
    score: float | None = None
    plan: Mapping[str, Any] | None = None
    rejection: Rejected | None = None
    artifact: Artifact | None = None
    facts: CodeFacts | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    checks: Checks | None = None
    timing: Timing = field(default_factory=dict)
    """``device_batch`` is the search's; the other phases come from the finals, for the trials selected there."""
    overlapped: bool = False
    same_code_as: str | None = None
    """The trial whose timing, or checks, it has; of a rejected one, the first that was rejected with the same code."""

    def contender(self) -> Contender | None:
        """What selection knows of the trial; None unless it is measured."""
        if self.outcome != "measured" or self.artifact is None:
            return None
        return Contender(
            id=self.id,
            ordinal=self.ordinal,
            candidate=self.candidate,
            in_space=self.in_space,
            is_default=self.is_default,
            code=self.artifact.artifact_sha256,
            median_seconds=self.timing["device_batch"].median_seconds,
            inherits=self.same_code_as is not None,
            private_scalars=self.private_scalars,
            score=self.score,
            registers=self.facts.registers if self.facts else None,
            stack_bytes=self.facts.stack_bytes if self.facts else 0,
        )


@dataclass(frozen=True, kw_only=True)
class CaseState:
    """One case as the ledger knows it."""

    id: str
    trials: tuple[TrialState, ...]
    """In canonical order."""
    baselines_wanted: tuple[str, ...]
    retimes: tuple[DefaultRetimed, ...] = ()
    finals: FinalsMeasured | None = None
    baselines: Mapping[str, BaselineMeasured] = field(default_factory=dict)
    fresh: Mapping[str, FreshBuilt] = field(default_factory=dict)
    revalidated: Mapping[str, Revalidated] = field(default_factory=dict)
    settled: CaseSettled | None = None
    untimed: str | None = None
    """Why the device times nothing; None where it does. Trials then end as ``checked``, not as ``measured``."""
    spills_allowed: bool = True
    """False: a candidate whose machine code spills registers is rejected."""
    cache_context: CacheContext = "warm"
    """How candidates are timed: see ``device.spec.CACHE_CONTEXTS``."""

    def trial(self, trial_id: str) -> TrialState:
        """The trial of that id (KeyError if none)."""
        for trial in self.trials:
            if trial.id == trial_id:
                return trial
        raise KeyError(trial_id)

    @property
    def default(self) -> TrialState | None:
        """The untuned default's trial."""
        return next((trial for trial in self.trials if trial.is_default), None)

    def contenders(self) -> tuple[Contender, ...]:
        """Every measured trial, as selection sees it."""
        return tuple(c for c in (trial.contender() for trial in self.trials) if c is not None)


def apply(state: CaseState, event: Event) -> CaseState:
    """The ledger after an event; the same object when the event is stale, repeated or not yet possible.

    KeyError when the event names a trial that the case does not have.
    """
    match event:
        case Built():
            return _built(state, event)
        case TrialRejected():
            trial = state.trial(event.trial)
            undoes = event.after_measured and trial.outcome == "measured" and state.finals is None
            if trial.outcome != "pending" and not undoes:
                return state
            return _reject(state, {event.trial: event.rejection}, checks=event.checks, facts=event.facts)
        case TrialMeasured():
            return _measured(state, event)
        case TrialChecked():
            return _checked(state, event)
        case DefaultRetimed():
            known = {retime.sequence for retime in state.retimes}
            # Finals were chosen by the floor that the earlier re-timings gave: a straggler must not unsettle them.
            if state.finals is not None or event.sequence in known:
                return state
            return replace(state, retimes=(*state.retimes, event))
        case FinalsMeasured():
            return _finals(state, event)
        case BaselineMeasured():
            name = event.samples.name
            return state if name in state.baselines else replace(state, baselines={**state.baselines, name: event})
        case FreshBuilt():
            return state if event.trial in state.fresh else replace(state, fresh={**state.fresh, event.trial: event})
        case Revalidated():
            if event.trial in state.revalidated:
                return state
            return replace(state, revalidated={**state.revalidated, event.trial: event})
        case CaseSettled():
            return state if state.settled is not None else replace(state, settled=event)


def stop(state: CaseState) -> CaseState:
    """The ledger after a cancel or failure: trials that have not ended are ``not_run``."""
    ended = (replace(trial, outcome="not_run") if trial.outcome == "pending" else trial for trial in state.trials)
    return replace(state, trials=tuple(ended))


def _built(state: CaseState, event: Built) -> CaseState:
    trial = state.trial(event.trial)
    if trial.outcome != "pending" or trial.artifact is not None:
        return state
    return _put(
        state,
        replace(
            trial,
            artifact=event.artifact,
            facts=event.facts,
            lower_seconds=event.lower_seconds,
            compile_seconds=event.compile_seconds,
        ),
    )


def _measured(state: CaseState, event: TrialMeasured) -> CaseState:
    trial = state.trial(event.trial)
    if trial.outcome != "pending" or trial.artifact is None:
        return state
    if event.same_code_as is not None:
        other = state.trial(event.same_code_as)
        # The trial to inherit from may have been rejected meanwhile; this one is then measured itself.
        if other.outcome != "measured" or other.artifact is None:
            return state
        if other.artifact.artifact_sha256 != trial.artifact.artifact_sha256:
            return state
    return _put(
        state,
        replace(
            trial,
            outcome="measured",
            timing=event.timing,
            checks=event.checks,
            overlapped=event.overlapped,
            same_code_as=event.same_code_as,
        ),
    )


def _checked(state: CaseState, event: TrialChecked) -> CaseState:
    trial = state.trial(event.trial)
    if trial.outcome != "pending" or trial.artifact is None:
        return state
    if event.same_code_as is not None:
        other = state.trial(event.same_code_as)
        if other.outcome != "checked" or other.artifact is None:
            return state
        if other.artifact.artifact_sha256 != trial.artifact.artifact_sha256:
            return state
    return _put(state, replace(trial, outcome="checked", checks=event.checks, same_code_as=event.same_code_as))


def _finals(state: CaseState, event: FinalsMeasured) -> CaseState:
    """Rejections end their trials; new samples replace the old ones; extra phases join the timing of equal code."""
    samples, old = event.samples, state.finals
    if state.baselines or state.fresh:
        return state
    rejections = {**(old.samples.rejections if old else {}), **samples.rejections}
    if event.phases_only:
        if old is None:
            return state
        extra = {**old.samples.extra_phases, **samples.extra_phases}
        kept = replace(old.samples, extra_phases=extra, rejections=rejections)
    else:
        # Finals are only redone after one of them ended a trial, and then bring a new finalist or end another trial.
        # Judged by the finals alone, so that replaying the events over the trials' last outcomes leads here too.
        nothing_ended = old is not None and rejections.keys() == old.samples.rejections.keys()
        if old is not None and nothing_ended and samples.samples_seconds.keys() <= old.samples.samples_seconds.keys():
            return state
        kept = replace(samples, rejections=rejections)
    state = replace(state, finals=FinalsMeasured(samples=kept))
    ended = {t: r for t, r in samples.rejections.items() if state.trial(t).outcome in ("pending", "measured")}
    return _reject(_with_phases(state, samples.extra_phases), ended)


def _with_phases(state: CaseState, extra_phases: Mapping[str, Timing]) -> CaseState:
    """Phases beyond the search's device_batch, given to each trial that has the code they were taken from."""
    by_code = {trial.artifact.artifact_sha256: extra_phases[trial.id] for trial in state.trials
               if trial.id in extra_phases and trial.artifact is not None}  # fmt: skip
    trials = []
    for trial in state.trials:
        extra = by_code.get(trial.artifact.artifact_sha256) if trial.artifact else None
        if extra and trial.outcome == "measured":
            trial = replace(trial, timing={**extra, "device_batch": trial.timing["device_batch"]})
        trials.append(trial)
    return replace(state, trials=tuple(trials))


def _reject(
    state: CaseState,
    rejections: Mapping[str, Rejected],
    *,
    checks: Checks | None = None,
    facts: CodeFacts | None = None,
) -> CaseState:
    for trial_id, rejection in rejections.items():
        trial = state.trial(trial_id)
        ended = replace(
            trial,
            outcome="rejected",
            rejection=rejection,
            checks=checks or trial.checks,
            facts=facts or trial.facts,
        )
        if ended.same_code_as is None:
            ended = replace(ended, same_code_as=_rejected_twin(state, ended))
        state = _put(state, ended)
    return state


def _rejected_twin(state: CaseState, trial: TrialState) -> str | None:
    """The first one that was rejected with the same machine code: one fault that several candidates have."""
    code = _code(trial)
    twins = (
        one for one in state.trials if one.outcome == "rejected" and one.id != trial.id and one.same_code_as is None
    )
    return next((one.id for one in twins if code is not None and _code(one) == code), None)


def _code(trial: TrialState) -> str | None:
    known = trial.artifact or trial.facts
    return None if known is None else known.artifact_sha256


def _put(state: CaseState, changed: TrialState) -> CaseState:
    at = next(at for at, trial in enumerate(state.trials) if trial.id == changed.id)
    return replace(state, trials=(*state.trials[:at], changed, *state.trials[at + 1 :]))

"""Performs a step: calls the builder and the measurer, and says what happened as events. Used by every driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from search.errors import ChildFailed
from search.events import (
    BaselineMeasured,
    Built,
    DefaultRetimed,
    Event,
    FinalsMeasured,
    FreshBuilt,
    Revalidated,
    TrialChecked,
    TrialMeasured,
    TrialRejected,
)
from search.ledger import CaseState, TrialState
from search.lowering.artifact_cache import Located, built_here
from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.checker import Checker
from search.measuring.protocol import MeasureItem, MeasureResult
from search.measuring.run import Measurer
from search.outcome import Rejected
from search.planning.cost import CostPolicy
from search.planning.plan import DEFAULT_POLICY, plan_candidate
from search.program.case import Case
from search.steps import Baseline, Build, Check, Finals, FreshBuild, Measure, Revalidate, Settle, ShareCode, Step


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What steps are performed with. The builder may be used by one thread at a time."""

    builder: Builder
    measurer: Measurer
    cancelled: Callable[[], bool]
    overlapped: Callable[[], bool]
    """Whether something is being compiled on this machine now."""
    compile_timeout_seconds: float = 60.0
    """Longest silence of the compiler on one candidate."""
    policy: CostPolicy = DEFAULT_POLICY
    """The policy that the case was planned with: a fresh plan must come out the same."""
    checker: Checker | None = None
    """What checks on a device that times nothing; the measurer does elsewhere."""
    located: Located = built_here
    """Finds the library of a trial that was built, maybe by another machine."""


def perform(step: Step, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    """The events of a step, as they happen; what was yielded before an exception stands.

    ``state`` is the ledger from which the step was asked, or a later one. A candidate's faults are events. Raises
    Cancelled, ToolchainUnavailable, ChildFailed, ArtifactsUnavailable; the step may then be asked again.
    """
    match step:
        case Build():
            return _build(step, state, case, tools)
        case Measure():
            return _measure(step, state, case, tools)
        case Check():
            return _check(step, state, case, tools)
        case ShareCode():
            return _share(step, state, case, tools)
        case Finals():
            return _finals(step, state, case, tools)
        case Baseline():
            return _baseline(step, state, case, tools)
        case FreshBuild():
            return _fresh_build(step, state, case, tools)
        case Revalidate():
            return _revalidate(step, state, case, tools)
        case Settle():
            return iter((step.result,))


def _build(step: Build, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    requests = _requests(step.trials, state, case)
    for result in tools.builder.build(
        requests, timeout_seconds=tools.compile_timeout_seconds, cancelled=tools.cancelled
    ):
        if result.artifact is not None and result.facts is not None:
            yield Built(
                trial=result.id,
                artifact=result.artifact,
                facts=result.facts,
                lower_seconds=result.lower_seconds,
                compile_seconds=result.compile_seconds,
            )
        else:
            rejection = _required(result.rejection, result.id)
            yield TrialRejected(trial=result.id, rejection=rejection, facts=result.facts)


def _measure(step: Measure, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    default = state.default
    default_ended = default is None or default.artifact is None or default.outcome == "rejected"
    for trial in step.trials:
        before = tools.overlapped()
        for result in tools.measurer.search(case, [_item(state.trial(trial), case, tools)], cancelled=tools.cancelled):
            overlapped = before or tools.overlapped()
            if result.rejection is not None:
                default_ended = default_ended or (default is not None and trial == default.id)
                yield TrialRejected(trial=trial, rejection=result.rejection, checks=result.checks)
            else:
                checks = _required(result.checks, trial)
                yield TrialMeasured(trial=trial, timing=result.timing, checks=checks, overlapped=overlapped)
    if default is None or default_ended:
        return
    for number in range(step.retimes):
        timing = tools.measurer.retime(case, _item(default, case, tools), cancelled=tools.cancelled)
        if isinstance(timing, Rejected):
            yield TrialRejected(trial=default.id, rejection=timing, after_measured=True)
            return
        yield DefaultRetimed(sequence=step.first_retime_sequence + number, timing=timing)


def _share(step: ShareCode, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    for trial, root_id in step.trials:
        root = state.trial(root_id)
        if root.outcome == "checked":
            yield TrialChecked(trial=trial, checks=_required(root.checks, root_id), same_code_as=root_id)
            continue
        if root.outcome != "measured":
            continue  # it was rejected since the step was asked: the trial will be measured itself
        result = _checked(_item(state.trial(trial), case, tools), case, tools)
        if result.rejection is not None:
            yield TrialRejected(trial=trial, rejection=result.rejection, checks=result.checks)
        else:
            yield TrialMeasured(
                trial=trial,
                timing=root.timing,
                checks=_required(result.checks, trial),
                overlapped=root.overlapped,
                same_code_as=root_id,
            )


def _check(step: Check, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    """Every trial ends: as checked, or as rejected by whatever its simulation came to."""
    assert tools.checker is not None, "a device that times nothing has a checker"
    items = [_item(state.trial(trial), case, tools) for trial in step.trials]
    lost = set(step.trials)
    for result in tools.checker.check(case, items, cancelled=tools.cancelled):
        lost.discard(result.id)
        if result.rejection is not None:
            yield TrialRejected(trial=result.id, rejection=result.rejection, checks=result.checks)
        else:
            yield TrialChecked(trial=result.id, checks=_required(result.checks, result.id))
    if lost:
        raise ChildFailed(f"no result of the check of {sorted(lost)}")


def _finals(step: Finals, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    """Every finalist comes back with samples or a rejection, else the driver would ask for ever."""
    asked = step.trials or step.all_phases
    items = [_item(state.trial(trial), case, tools) for trial in asked]
    sittings = None if step.trials else 1  # phases alone decide nothing: one process takes them
    samples = tools.measurer.finals(
        case, items, all_phases=step.all_phases, sittings=sittings, cancelled=tools.cancelled
    )
    lost = set(asked) - samples.samples_seconds.keys() - samples.rejections.keys()
    lost |= set(step.all_phases) - samples.extra_phases.keys() - samples.rejections.keys()
    if lost:
        raise ChildFailed(f"finals: no samples and no rejection for {sorted(lost)}")
    yield FinalsMeasured(samples=samples, phases_only=not step.trials)


def _baseline(step: Baseline, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    against = None if step.against is None else _item(state.trial(step.against), case, tools)
    samples = tools.measurer.baseline(case, step.name, against=against, cancelled=tools.cancelled)
    yield BaselineMeasured(samples=samples)


def _fresh_build(step: FreshBuild, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    requests = _requests(step.trials, state, case)
    for result in tools.builder.build(
        requests, timeout_seconds=tools.compile_timeout_seconds, cancelled=tools.cancelled, fresh=True
    ):
        # No bound here: whether a plan fits the budget was decided when the case was opened.
        candidate = state.trial(result.id).candidate
        planned = plan_candidate(case, candidate, budget_scalars=None, policy=tools.policy)
        yield FreshBuilt(
            trial=result.id,
            artifact=result.artifact,
            plan=planned.plan.document() if planned.plan is not None else None,
            rejection=result.rejection,
        )


def _revalidate(step: Revalidate, state: CaseState, case: Case, tools: Tools) -> Iterator[Event]:
    for trial_id in step.trials:
        trial, fresh = state.trial(trial_id), state.fresh[trial_id]
        artifact, record = _required(fresh.artifact, trial_id), _required(trial.artifact, trial_id)
        result = _checked(_located(trial, artifact, case, tools), case, tools)
        yield Revalidated(
            trial=trial_id,
            same_source=artifact.source_sha256 == record.source_sha256,
            same_machine_code=artifact.artifact_sha256 == record.artifact_sha256,
            same_plan=_text(fresh.plan) == _text(trial.plan),
            checks=result.checks,
            rejection=result.rejection,
        )


def _checked(item: MeasureItem, case: Case, tools: Tools) -> MeasureResult:
    for result in tools.measurer.check(case, [item], cancelled=tools.cancelled):
        return result
    raise ChildFailed(f"no result of the check of {item.id}")


def _requests(trials: Sequence[str], state: CaseState, case: Case) -> list[BuildRequest]:
    document = case.document()
    candidates = {trial.id: trial.candidate for trial in state.trials}
    return [
        BuildRequest(
            id=trial,
            case=document,
            candidate=candidates[trial].document(),
            spills_allowed=state.spills_allowed,
        )
        for trial in trials
    ]


def _item(trial: TrialState, case: Case, tools: Tools) -> MeasureItem:
    return _located(trial, _required(trial.artifact, trial.id), case, tools)


def _located(trial: TrialState, artifact: Artifact, case: Case, tools: Tools) -> MeasureItem:
    request = BuildRequest(id=trial.id, case=case.document(), candidate=trial.candidate.document())
    return MeasureItem(id=trial.id, artifact=tools.located(request, artifact))


def _required(value: Any, trial: str) -> Any:
    """A part of a record that its kind always has."""
    if value is None:
        raise ChildFailed(f"incomplete record of trial {trial}")
    return value


def _text(plan: Any) -> str:
    """One text for equal plans, whether they went through a database or not."""
    return json.dumps(plan, sort_keys=True)

"""Performs the steps of a replay: builds every arm in fresh processes on all cores, then times alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from search.errors import ChildFailed
from search.lowering.artifact_cache import Located, built_here
from search.lowering.builder import Builder
from search.lowering.contract import BuildRequest, BuildResult
from search.measuring.protocol import MeasureItem, Phase, PhaseTiming
from search.measuring.run import Measurer
from search.measuring.workbench import utc_now
from search.planning.plan import plan_candidate
from search.program.case import Case
from search.program.resolve import resolve_case
from search.replay.records import ArmBuild, ArmTimed, BuildRound, ReplayRecord, ReplayState, ReplayStep, RoundBuilt
from search.selection.acceptance import METRICS
from search.selection.replay import ReplayCase, sequence
from search.space.candidate import Candidate

TORCH = "torch_eager"
"""The baseline that arm T is."""
MAXIMUM_BUILDERS = 8


@dataclass(frozen=True, kw_only=True)
class ReplayTools:
    """What steps are performed with. Every builder and measurer is made for one step and closed after it."""

    builder: Callable[[Sequence[int]], Builder]
    """A new builder on these CPUs."""
    build_cpus: tuple[int, ...]
    """One building process on each."""
    measurer: Callable[[], Measurer]
    """A new measurer: its children are fresh."""
    cancelled: Callable[[], bool]
    compile_timeout_seconds: float = 60.0
    located: Located = built_here
    """Finds the library of an arm, maybe one that another machine built."""


def perform_replay(step: ReplayStep, state: ReplayState, tools: ReplayTools) -> Iterator[ReplayRecord]:
    """The records of a step, as they come. An arm's faults are records, and a kernel's end the step.

    Raises Cancelled, ToolchainUnavailable, ChildFailed; the step may then be asked again, as a whole.
    """
    if isinstance(step, BuildRound):
        yield _build(step.round, state, tools)
    else:
        yield from _time(step.round, state, tools)


def case_of(replayed: ReplayCase) -> Case:
    """The Case of a replayed entry."""
    return resolve_case(replayed.case, admitted=True)


def _build(number: int, state: ReplayState, tools: ReplayTools) -> RoundBuilt:
    arms = [(case, arm) for case in state.replay.cases for arm in case.built]
    requests = [_request(case, arm) for case, arm in arms]
    results = _build_all(requests, tools)
    builds = []
    for replayed, arm in arms:
        result = results[f"{replayed.index}/{arm}"]
        candidate = Candidate.from_document(replayed.arms[arm].candidate)
        plan = plan_candidate(case_of(replayed), candidate, budget_scalars=None).plan
        builds.append(
            ArmBuild(
                case=replayed.index,
                arm=arm,
                artifact=result.artifact,
                plan=plan.document() if plan is not None else None,
                rejection=result.rejection,
            )
        )
    return RoundBuilt(round=number, process=f"round {number}, {secrets.token_hex(8)}", builds=tuple(builds))


def _request(case: ReplayCase, arm: str) -> BuildRequest:
    built = "C" if arm == "A" else arm
    return BuildRequest(id=f"{case.index}/{built}", case=case.case, candidate=case.arms[built].candidate)


def _build_all(requests: Sequence[BuildRequest], tools: ReplayTools) -> dict[str, BuildResult]:
    """Every request built, on all CPUs at once, each process a new one."""
    cpus = tools.build_cpus[: min(MAXIMUM_BUILDERS, len(requests))]

    def share(place: int) -> list[BuildResult]:
        builder = tools.builder(cpus[place : place + 1])
        try:
            return list(
                builder.build(
                    requests[place :: len(cpus)],
                    timeout_seconds=tools.compile_timeout_seconds,
                    cancelled=tools.cancelled,
                    fresh=True,
                )
            )
        finally:
            builder.close()

    with ThreadPoolExecutor(max_workers=len(cpus), thread_name_prefix="replay-build") as pool:
        return {result.id: result for results in pool.map(share, range(len(cpus))) for result in results}


def _time(number: int, state: ReplayState, tools: ReplayTools) -> Iterator[ArmTimed]:
    built = state.built[number]
    with tools.measurer() as measurer:
        for index, arm in sequence(state.replay, number):
            case = case_of(state.case(index))
            if arm == "T":
                yield _torch(number, index, case, measurer, tools)
                continue
            artifact = built.build(index, "C" if arm == "A" else arm).artifact
            if artifact is None:
                raise ChildFailed(f"round {number} has no build of arm {arm} of case {index}")
            item = MeasureItem(id=arm, artifact=tools.located(_request(state.case(index), arm), artifact))
            record = _kernel(number, index, arm, case, item, measurer, tools)
            yield record
            if record.failure is not None:
                return


def _kernel(
    number: int, index: int, arm: str, case: Case, item: MeasureItem, measurer: Measurer, tools: ReplayTools
) -> ArmTimed:
    started_at, started = utc_now(), time.monotonic()
    result = measurer.replay(case, item, phases=METRICS, cancelled=tools.cancelled)
    finished_at, finished = utc_now(), time.monotonic()
    return ArmTimed(
        round=number,
        case=index,
        arm=arm,
        started_at=started_at,
        finished_at=finished_at,
        started_monotonic_seconds=started,
        finished_monotonic_seconds=finished,
        timing=result.timing,
        checks=result.checks,
        failure=result.rejection.document() if result.rejection is not None else None,
    )


def _torch(number: int, index: int, case: Case, measurer: Measurer, tools: ReplayTools) -> ArmTimed:
    started_at, started = utc_now(), time.monotonic()
    samples = measurer.baseline(case, TORCH, cancelled=tools.cancelled, protocol="acceptance")
    finished_at, finished = utc_now(), time.monotonic()
    timing: dict[Phase, PhaseTiming] = {
        metric: samples.timing[metric] for metric in METRICS if metric in samples.timing
    }
    complete = samples.error is None and len(timing) == len(METRICS) and samples.checks is not None
    return ArmTimed(
        round=number,
        case=index,
        arm="T",
        started_at=started_at,
        finished_at=finished_at,
        started_monotonic_seconds=started,
        finished_monotonic_seconds=finished,
        timing=timing if complete else {},
        checks=samples.checks,
        torch={
            "implementation": samples.implementation,
            "allocation": samples.allocation,
            "versions": dict(samples.versions),
        },
        failure=None
        if complete
        else {"stage": "runtime", "reason": samples.error or "torch gave no timing", "detail": {}},
    )

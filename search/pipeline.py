"""Tune one case in this process: plan it, then loop over its steps. The service loops over the same ones.

>>> state = tune(case, device=device, work_dir="work")            # doctest: +SKIP
>>> state.trial(state.settled.winner).candidate                   # doctest: +SKIP
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from search.device.spec import CacheContext, DeviceSpec, check_cache_context, check_spills_allowed
from search.errors import Cancelled, ChildFailed, InvalidInput, Problem, ToolchainUnavailable
from search.events import Event
from search.ledger import CaseState, TrialState, apply
from search.lowering.builder import Builder
from search.measuring.checker import Checker, SimulationChecker
from search.measuring.protocol import BASELINES
from search.measuring.run import Measurer
from search.perform import Tools as Tools  # the service performs steps through this module
from search.perform import perform as perform
from search.planning.budget import DEFAULT_BUDGET_SCALARS
from search.planning.cost import CostPolicy
from search.planning.plan import DEFAULT_POLICY, plan_case
from search.program.case import Case
from search.space.enumerate import Space
from search.space.resolve import resolve_space
from search.steps import Settle, Step, is_quiet, missing, queue_of, step_key

MAXIMUM_REPEATS = 3
"""A step that was performed so often and is still missing will not come right by itself."""

Heard = Callable[[CaseState, Event], None]


def open_case(
    case: Case,
    *,
    space: Space,
    budget_scalars: int | None = DEFAULT_BUDGET_SCALARS,
    policy: CostPolicy = DEFAULT_POLICY,
    baselines: Sequence[str] | None = None,
    case_id: str = "case",
    untimed: str | None = None,
    spills_allowed: bool = True,
    cache_context: CacheContext = "warm",
) -> CaseState:
    """A new ledger: every candidate of the space, and the default, as a trial; those that planning rejects have ended.

    Trial ids are ``<case_id>-<ordinal>``. ``untimed`` is the device's: why it times nothing. ``baselines`` None: torch
    eager, or none where nothing is timed. InvalidInput for a bad budget, an unknown baseline, one beside ``untimed``.
    """
    if baselines is None:
        baselines = () if untimed else ("torch_eager",)
    if untimed and baselines:
        message = f"{untimed}, so there is nothing to compare a baseline with"
        raise InvalidInput([Problem(field="/baselines", value=list(baselines), message=message, allowed=[])])
    problems = [
        Problem(field=f"/baselines/{n}", value=name, message="unknown baseline", allowed=list(BASELINES))
        for n, name in enumerate(baselines)
        if name not in BASELINES
    ]
    if problems:
        raise InvalidInput(problems)
    planned = plan_case(case, space, budget_scalars=budget_scalars, policy=policy)
    trials = tuple(
        TrialState(
            id=f"{case_id}-{ordinal}",
            ordinal=ordinal,
            candidate=item.candidate,
            in_space=item.in_space,
            is_default=item.is_default,
            outcome="pending" if item.rejection is None else "rejected",
            private_scalars=item.plan.private_scalars if item.plan is not None else 0,
            score=item.plan.score if item.plan is not None else None,
            plan=item.plan.document() if item.plan is not None else None,
            rejection=item.rejection,
        )
        for ordinal, item in enumerate(planned)
    )
    wanted = tuple(dict.fromkeys(baselines))
    return CaseState(
        id=case_id,
        trials=trials,
        baselines_wanted=wanted,
        untimed=untimed,
        spills_allowed=spills_allowed,
        cache_context=cache_context,
    )


class Tuner:
    """Searches cases on one device of this machine, one after the other, with children that stay warm in between.

    ``work_dir`` keeps artifacts and caches, and may be used again. ``cache_context``: how candidates are timed, cold on
    a GPU alone. ToolchainUnavailable if the device is unavailable, InvalidInput for a context that it does not have.
    Not thread-safe; a context manager: leaving it ends the children.
    """

    def __init__(self, device: DeviceSpec, work_dir: Path | str, *, cache_context: CacheContext = "warm") -> None:
        check_cache_context(cache_context, device)
        if not device.available:
            raise ToolchainUnavailable(f"device {device.id} is unavailable: {device.reason}")
        self.device, self.cache_context = device, cache_context
        work = Path(work_dir)
        artifacts = work / "artifacts"
        self._builder = Builder(
            artifacts, cpus=device.compile_cpus, target=device.target, architecture=device.architecture
        )
        self._measurer: Measurer | None = None
        self._checker: Checker | None = None
        try:
            if device.timed:
                self._measurer = Measurer(device, work / "measuring", cache_context=cache_context)
            else:
                self._checker = SimulationChecker(artifacts, work / "simulating", cpus=device.compile_cpus)
        except BaseException:
            self._builder.close()
            raise

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the children and let go of the device. Idempotent."""
        try:
            for one in (self._measurer, self._checker):
                if one is not None:
                    one.close()
        finally:
            self._builder.close()

    def tune(
        self,
        case: Case,
        *,
        space: Space | Mapping[str, Any] | None = None,
        budget_scalars: int | None = DEFAULT_BUDGET_SCALARS,
        baselines: Sequence[str] | None = None,
        spills_allowed: bool = True,
        policy: CostPolicy = DEFAULT_POLICY,
        on_event: Heard | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> CaseState:
        """Search one case to the end; the ledger it returns is settled.

        ``space`` is resolved, or a document (knob → list), or None for the device's default lists.
        ``on_event(state, event)`` hears of each event after it was applied, in the caller's thread. Compiling overlaps
        the search. On a compile-only device trials end as ``checked``, and nothing wins. ``spills_allowed`` False, on
        CUDA alone: a candidate whose code spills is rejected. InvalidInput, ToolchainUnavailable, ChildFailed,
        Cancelled.
        """
        check_spills_allowed(spills_allowed, self.device)
        if not isinstance(space, Space):
            space = resolve_space(space or {}, case, self.device.target)
        state = open_case(
            case,
            space=space,
            budget_scalars=budget_scalars,
            policy=policy,
            baselines=baselines,
            untimed=self.device.untimed,
            spills_allowed=spills_allowed,
            cache_context=self.cache_context,
        )
        asked = cancelled or (lambda: False)
        return _Loop(state, case, self._builder, self._measurer, self._checker, policy, on_event, asked).run()


def tune(
    case: Case,
    *,
    device: DeviceSpec,
    work_dir: Path | str,
    space: Space | Mapping[str, Any] | None = None,
    budget_scalars: int | None = DEFAULT_BUDGET_SCALARS,
    baselines: Sequence[str] | None = None,
    spills_allowed: bool = True,
    cache_context: CacheContext = "warm",
    policy: CostPolicy = DEFAULT_POLICY,
    on_event: Heard | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> CaseState:
    """Search one case; see :class:`Tuner`, which several cases share."""
    if device.available and not isinstance(space, Space):
        space = resolve_space(space or {}, case, device.target)  # bad words cost no process
    with Tuner(device, work_dir, cache_context=cache_context) as tuner:
        return tuner.tune(
            case,
            space=space,
            budget_scalars=budget_scalars,
            baselines=baselines,
            spills_allowed=spills_allowed,
            policy=policy,
            on_event=on_event,
            cancelled=cancelled,
        )


class _Loop:
    """Two lanes, one thread each: compiling, and the device. The caller's thread keeps the ledger."""

    def __init__(
        self,
        state: CaseState,
        case: Case,
        builder: Builder,
        measurer: Measurer | None,
        checker: Checker | None,
        policy: CostPolicy,
        on_event: Heard | None,
        cancelled: Callable[[], bool],
    ) -> None:
        self._state, self._case, self._on_event = state, case, on_event
        self._stopping = threading.Event()
        self._running: dict[str, Step] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._said: Queue[tuple[str, Event | Exception | None]] = Queue()
        """(lane, event), (lane, what ended its step) or (lane, None) when the step is done."""
        self._performed: Counter[str] = Counter()
        self._tools = Tools(
            builder=builder,
            measurer=measurer,  # type: ignore[arg-type]  # a case that is not timed has no step for it
            checker=checker,
            cancelled=lambda: self._stopping.is_set() or cancelled(),
            overlapped=lambda: "compile" in self._running,
            policy=policy,
        )

    def run(self) -> CaseState:
        """The settled ledger. Whatever ends it, no thread of ours is left."""
        try:
            while self._state.settled is None:
                if not self._start():
                    self._hear()
            return self._state
        finally:
            self._stopping.set()
            for thread in self._threads.values():
                thread.join()

    def _start(self) -> bool:
        """Starts what can be started; True when the case was settled."""
        for step in missing(self._state, tuple(self._running.values())):
            if isinstance(step, Settle):
                self._apply(step.result)
                return True
            lane = queue_of(step)
            other = self._running.get("compile" if lane == "device" else "device")
            quiet = is_quiet(step) or (other is not None and is_quiet(other))
            if lane in self._running or (quiet and other is not None):
                continue
            self._performed[step_key(step)] += 1
            if self._performed[step_key(step)] > MAXIMUM_REPEATS:
                raise ChildFailed(f"{step} was performed {MAXIMUM_REPEATS} times without a result")
            self._running[lane] = step
            self._threads[lane] = threading.Thread(
                target=self._perform, args=(lane, step, self._state), name=f"tune-{lane}", daemon=True
            )
            self._threads[lane].start()
        return False

    def _hear(self) -> None:
        """Waits for one thing that a lane says."""
        lane, said = self._said.get()
        if isinstance(said, Exception):
            raise said
        if said is None:
            del self._running[lane]
        else:
            self._apply(said)

    def _perform(self, lane: str, step: Step, state: CaseState) -> None:
        """Runs in the lane's thread."""
        try:
            for event in perform(step, state, self._case, self._tools):
                self._said.put((lane, event))
                if self._tools.cancelled():
                    raise Cancelled("tuning was cancelled")
        except Exception as error:  # it is raised again in the caller's thread
            self._said.put((lane, error))
        else:
            self._said.put((lane, None))

    def _apply(self, event: Event) -> None:
        self._state = apply(self._state, event)
        if self._on_event is not None:
            self._on_event(self._state, event)

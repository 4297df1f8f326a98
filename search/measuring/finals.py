"""Finals, parent side: finalists interleaved in one child at a time, in rotating rounds; whoever fails is taken out and
the rest starts over, so that every pair of samples that is compared was taken in the same round of the same child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from search.children.child import ChildGone, ChildTimeout
from search.errors import ChildFailed
from search.measuring.progress import FINALS
from search.measuring.protocol import (
    FinalsSamples,
    MeasureItem,
    PhaseTiming,
    Protocol,
    Timing,
    timing_from_document,
)
from search.measuring.rejections import died, timed_out
from search.measuring.workbench import Asked, Timeouts, Workbench, utc_now
from search.outcome import Rejected
from search.program.case import Case
from search.stats.summary import median

_Conditions: TypeAlias = list[Mapping[str, Any]]
_Sitting: TypeAlias = tuple[dict[str, tuple[float, ...]], dict[str, Timing], dict[str, int], _Conditions]
"""By id: samples of the rounds, the other phases of those that were asked for, calls per sample; then the conditions
of the rounds, where there are any."""


class _Fault(Exception):  # noqa: N818 - one finalist's failure, handled next to the call
    def __init__(self, index: int, rejection: Rejected) -> None:
        self.index = index
        self.rejection = rejection
        super().__init__(rejection.reason)


def measure_finals(
    workbench: Workbench,
    case: Case,
    items: Sequence[MeasureItem],
    *,
    all_phases: Sequence[str],
    protocol: Protocol,
    timeouts: Timeouts,
    cancelled: Asked,
) -> FinalsSamples:
    """Interleaved samples of every finalist that gets through; see ``Measurer.finals``."""
    started, left = utc_now(), list(items)
    rejections: dict[str, Rejected] = {}
    samples: dict[str, tuple[float, ...]] = {}
    phases: dict[str, Timing] = {}
    conditions: _Conditions = []
    while left:
        samples, phases = {item.id: () for item in left}, {}
        conditions.clear()
        try:
            for sitting in range(protocol.sittings):
                last = sitting == protocol.sittings - 1
                taken, phases, calls, under = _sitting(
                    workbench,
                    case,
                    left,
                    all_phases if last else (),
                    protocol,
                    sitting,
                    timeouts,
                    cancelled,
                )
                conditions += under
                samples = {trial: (*samples[trial], *taken[trial]) for trial in samples}
            phases = {
                trial: {**timing, "device_batch": _batch(samples[trial], calls[trial])}
                for trial, timing in phases.items()
            }
        except _Fault as fault:
            rejections[left.pop(fault.index).id] = fault.rejection
            samples, phases = {}, {}
            conditions.clear()
            continue
        break
    return FinalsSamples(
        order=tuple(item.id for item in left),
        protocol=protocol.name,
        samples_seconds=samples,
        extra_phases=phases,
        rejections=rejections,
        started_at=started,
        finished_at=utc_now(),
        sittings=protocol.sittings,
        conditions=tuple(conditions),
    )


def _sitting(
    workbench: Workbench,
    case: Case,
    items: list[MeasureItem],
    all_phases: Sequence[str],
    protocol: Protocol,
    sitting: int,
    timeouts: Timeouts,
    cancelled: Asked,
) -> _Sitting:
    """The rounds of one process: a fresh one, unless there is only one sitting. Phases come after them."""
    if protocol.sittings > 1:
        workbench.discard()
    wanted = [index for index, item in enumerate(items) if item.id in set(all_phases)]
    while True:
        workbench.open(case, cancelled)
        innocent = workbench.used  # of what ran here earlier: a fresh child decides who is to blame
        workbench.used = True
        try:
            return _rounds(workbench, items, wanted, protocol, sitting, timeouts, cancelled)
        except ChildTimeout:
            exit_ = workbench.discard()
            assert exit_ is not None
            index = exit_.progress - FINALS
            if not 0 <= index < len(items):
                raise ChildFailed(f"finals: no answer within {timeouts.item_seconds:g} s, no item running") from None
            raise _Fault(index, timed_out(timeouts.item_seconds, "finals", exit_)) from None
        except ChildGone as gone:
            workbench.discard()
            if innocent:
                continue
            index = gone.exit.progress - FINALS
            if not 0 <= index < len(items):
                raise ChildFailed(f"finals: the child died with no item running: {gone.exit.document()}") from None
            raise _Fault(index, died("finals", gone.exit)) from None


def _rounds(
    workbench: Workbench,
    items: list[MeasureItem],
    wanted: list[int],
    protocol: Protocol,
    sitting: int,
    timeouts: Timeouts,
    cancelled: Asked,
) -> _Sitting:
    count = protocol.samples // protocol.sittings
    workbench.tell(
        "finals",
        artifacts=[item.artifact.located_document() for item in items],
        protocol=protocol.document(),
        turns=[sitting * count, (sitting + 1) * count],
        all_phases=wanted,
    )
    rounds: list[list[float]] = []
    conditions: _Conditions = []
    phases: dict[str, Timing] = {}
    while True:
        # A round holds one sample of each: its patience grows with their number.
        message = workbench.answer(cancelled, timeouts.item_seconds * len(items))
        match message["event"]:
            case "warmed":
                pass
            case "round":
                rounds.append(message["seconds"])
                conditions += filter(None, [message.get("conditions")])
            case "phases":
                phases[items[message["index"]].id] = timing_from_document(message["timing"])
            case "fault":
                workbench.discard()
                raise _Fault(message["index"], Rejected.from_document(message["rejection"]))
            case "done":
                counts = {item.id: count for item, count in zip(items, message["calls_per_sample"], strict=True)}
                return _columns(items, rounds), phases, counts, conditions
            case other:
                raise ChildFailed(f"finals: unknown answer {other!r}")


def _columns(items: list[MeasureItem], rounds: list[list[float]]) -> dict[str, tuple[float, ...]]:
    return {item.id: tuple(row[index] for row in rounds) for index, item in enumerate(items)}


def _batch(samples_seconds: tuple[float, ...], calls: int) -> PhaseTiming:
    """``device_batch`` over the rounds of all sittings; the calls are those of the last one."""
    return PhaseTiming(samples_seconds=samples_seconds, median_seconds=median(samples_seconds), calls_per_sample=calls)

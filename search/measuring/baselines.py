"""Baselines, parent side: a warm torch child and a warm kernel child on one CPU, sampled turn by turn.

Round r takes one sample of each, our kernel first when r is even. Each sample follows one untimed call of its own side,
which brings back what the other side pushed out of the caches.
"""

from __future__ import annotations

from typing import Any

from search.children.child import ChildGone, ChildTimeout
from search.errors import ChildFailed, DeviceContended
from search.measuring.protocol import (
    BaselineSamples,
    Checks,
    MeasureItem,
    Phase,
    PhaseTiming,
    Protocol,
    timing_from_document,
)
from search.measuring.workbench import Asked, Timeouts, Workbench, own_work_seconds
from search.program.case import Case
from search.stats.summary import median


class _Failed(Exception):  # noqa: N818 - becomes the ``error`` of the answer
    """One side cannot be measured; the message says why."""


def measure_baseline(
    torch: Workbench,
    kernels: Workbench,
    case: Case,
    name: str,
    *,
    against: MeasureItem | None,
    protocol: Protocol,
    timeouts: Timeouts,
    cancelled: Asked,
) -> BaselineSamples:
    """Paired samples of a baseline; see ``Measurer.baseline``."""
    told: dict[str, Any] = {}
    try:
        with _charged(torch, "torch"):
            torch.open(case, cancelled)
            patience = timeouts.prepare_seconds + own_work_seconds(case)
            told = torch.ask(cancelled, patience, "baseline", name=name, protocol=protocol.document())
        if told.get("error"):
            if told.get("tainted"):
                torch.discard()
            raise _Failed(told["error"])
        return _paired(torch, kernels, case, name, told, against, protocol, timeouts, cancelled)
    except _Failed as failed:
        return _answer(name, told, against, {}, (), str(failed))


def _paired(
    torch: Workbench,
    kernels: Workbench,
    case: Case,
    name: str,
    told: dict[str, Any],
    against: MeasureItem | None,
    protocol: Protocol,
    timeouts: Timeouts,
    cancelled: Asked,
) -> BaselineSamples:
    if against is not None:
        with _charged(kernels, f"kernel {against.id}"):
            kernels.open(case, cancelled)
            kernels.used = True
            ready = kernels.ask(
                cancelled,
                timeouts.item_seconds,
                "pair_load",
                artifact=against.artifact.located_document(),
                protocol=protocol.document(),
            )
            _require(ready, "ready")
    theirs: list[float] = []
    ours: list[float] = []
    for turn in range(protocol.samples):
        for kernel in (True, False) if turn % 2 == 0 else (False, True):
            if kernel and against is None:
                continue
            side, taken = (kernels, ours) if kernel else (torch, theirs)
            with _charged(side, "kernel" if kernel else "torch"):
                sample = side.ask(cancelled, timeouts.item_seconds, "pair_sample")
                _require(sample, "sample")
            taken.append(sample["seconds"])
    with _charged(torch, "torch"):
        rest = torch.ask(cancelled, timeouts.prepare_seconds, "phases", protocol=protocol.document())
    timing = dict(timing_from_document(rest["timing"]))
    timing["device_batch"] = PhaseTiming(
        samples_seconds=tuple(theirs), median_seconds=median(theirs), calls_per_sample=told["calls_per_sample"]
    )
    return _answer(name, told, against, timing, tuple(ours), None)


def _answer(
    name: str,
    told: dict[str, Any],
    against: MeasureItem | None,
    timing: dict[Phase, PhaseTiming],
    ours: tuple[float, ...],
    error: str | None,
) -> BaselineSamples:
    checks = told.get("checks")
    return BaselineSamples(
        name=name,
        implementation=told.get("implementation", ""),
        allocation=told.get("allocation", ""),
        versions=told.get("versions", {}),
        timing=timing,
        checks=Checks.from_document(checks) if checks else None,
        kernel_id=against.id if against else None,
        kernel_seconds=ours,
        error=error,
        threads=1,
    )


class _charged:  # noqa: N801 - used as a context manager, like a function
    """What goes wrong inside is this side's failure: its child is discarded and the message names it."""

    def __init__(self, side: Workbench, who: str) -> None:
        self._side = side
        self._who = who

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ChildGone):
            self._side.discard()
            raise _Failed(f"{self._who}: {error}") from error
        if isinstance(error, ChildTimeout):
            self._side.discard()
            raise _Failed(f"{self._who}: {error}") from error
        if isinstance(error, ChildFailed) and not isinstance(error, DeviceContended) and self._who == "torch":
            raise _Failed(f"torch: {error}") from error


def _require(message: dict[str, Any], event: str) -> None:
    if message["event"] != event:
        raise _Failed(f"kernel: {message.get('rejection', message)}")

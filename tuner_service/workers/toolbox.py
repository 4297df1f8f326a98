"""Builders and measurers of a service: long-lived, because their children are dear to start, and closed when idle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from search.device.spec import DeviceSpec
from search.events import Event
from search.ledger import CaseState
from search.lowering.builder import Builder
from search.measuring.run import Measurer
from search.perform import Tools, perform
from search.program.case import Case
from search.replay.perform import ReplayTools, perform_replay
from search.replay.records import ReplayRecord, ReplayState, ReplayStep
from search.steps import FreshBuild, Step, queue_of
from tuner_service.errors import DeviceVanished


class Toolbox:
    """Performs steps with real compilers and devices. Thread-safe.

    A builder serves one task at a time: each compile slot gets its own. A device has one measurer, as it has one slot.
    """

    def __init__(
        self,
        *,
        devices: Mapping[str, DeviceSpec],
        artifacts: Path,
        work: Path,
        child_timeout_seconds: float,
        overlap_watch: Callable[[], Callable[[], bool]],
    ) -> None:
        self._devices, self._artifacts, self._work = dict(devices), artifacts, work
        self._timeout_seconds, self._overlap_watch = child_timeout_seconds, overlap_watch
        self._lock = threading.Lock()
        self._idle_builders: dict[str, list[Builder]] = {}
        self._busy_builders: set[Builder] = set()
        self._measurers: dict[str, Measurer] = {}

    def perform(
        self, step: Step, state: CaseState, case: Case, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """Events of a step as they happen. DeviceVanished, and what ``search.perform`` raises."""
        device = self._devices.get(device_id)
        if device is None:
            raise DeviceVanished(f"device {device_id} is not attached any more")
        if queue_of(step) == "compile":
            with self._builder(device, fresh=isinstance(step, FreshBuild)) as builder:
                yield from perform(step, state, case, self._tools(builder, None, cancelled))
        else:
            yield from perform(step, state, case, self._tools(None, self._measurer(device), cancelled))

    def replay(
        self, step: ReplayStep, state: ReplayState, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[ReplayRecord]:
        """Records of a step of an acceptance, with builders and a measurer of its own. As :meth:`perform` raises."""
        device = self._devices.get(device_id)
        if device is None:
            raise DeviceVanished(f"device {device_id} is not attached any more")
        tools = ReplayTools(
            builder=lambda cpus: Builder(self._artifacts, cpus=cpus, target=device.target),
            build_cpus=tuple(sorted({*device.compile_cpus, *device.measure_cpus})),
            measurer=lambda: Measurer(device, self._work / "measuring", child_timeout_seconds=self._timeout_seconds),
            cancelled=cancelled,
            compile_timeout_seconds=self._timeout_seconds,
        )
        yield from perform_replay(step, state, tools)

    def rest(self) -> None:
        """Ends the children of builders and measurers that do nothing now."""
        with self._lock:
            builders = [builder for idle in self._idle_builders.values() for builder in idle]
            self._idle_builders.clear()
            measurers = list(self._measurers.values())
            self._measurers.clear()
        for builder in builders:
            builder.close()
        for measurer in measurers:
            measurer.close()

    def close(self) -> None:
        """Ends every child. Tasks must have been told to stop."""
        self.rest()
        with self._lock:
            busy = list(self._busy_builders)
        for builder in busy:
            builder.close()

    def _tools(self, builder: Builder | None, measurer: Measurer | None, cancelled: Callable[[], bool]) -> Tools:
        return Tools(
            builder=builder,  # type: ignore[arg-type]  # a compile step has a builder, a device step a measurer
            measurer=measurer,  # type: ignore[arg-type]
            cancelled=cancelled,
            overlapped=self._overlap_watch(),
            compile_timeout_seconds=self._timeout_seconds,
        )

    @contextmanager
    def _builder(self, device: DeviceSpec, *, fresh: bool) -> Iterator[Builder]:
        """An idle builder or a new one. A fresh build gets its own: it would end the warm child of another."""
        with self._lock:
            idle = self._idle_builders.setdefault(device.target, [])
            builder = idle.pop() if idle and not fresh else None
        if builder is None:
            builder = Builder(self._artifacts, cpus=device.compile_cpus, target=device.target)
        with self._lock:
            self._busy_builders.add(builder)
        try:
            yield builder
        finally:
            with self._lock:
                self._busy_builders.discard(builder)
                if not fresh:
                    self._idle_builders.setdefault(device.target, []).append(builder)
            if fresh:
                builder.close()

    def _measurer(self, device: DeviceSpec) -> Measurer:
        with self._lock:
            if device.id not in self._measurers:
                self._measurers[device.id] = Measurer(
                    device, self._work / "measuring", child_timeout_seconds=self._timeout_seconds
                )
            return self._measurers[device.id]

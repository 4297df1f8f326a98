"""Builders, measurers and checkers of a service: long-lived, because children are dear to start; closed when idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from search.device.spec import CacheContext, DeviceSpec
from search.events import Event
from search.ledger import CaseState
from search.lowering.artifact_cache import ArtifactCache, Located, built_here
from search.lowering.builder import Builder
from search.measuring.checker import Checker, SimulationChecker
from search.measuring.run import Measurer
from search.perform import Tools, perform
from search.program.case import Case
from search.replay.perform import ReplayTools, perform_replay
from search.replay.records import ReplayRecord, ReplayState, ReplayStep
from search.steps import Check, FreshBuild, Step, queue_of
from tuner_service.errors import DeviceVanished
from tuner_service.workers.libraries import Libraries
from tuner_service.workers.pool import Pool


class Toolbox:
    """Performs steps with real compilers and devices. Thread-safe.

    A builder serves one task at a time, and so do a checker and a measurer: each compile slot gets its own, and each
    device, which has one slot.
    """

    def __init__(
        self,
        *,
        devices: Callable[[], Mapping[str, DeviceSpec]],
        artifacts: ArtifactCache,
        work: Path,
        child_timeout_seconds: float,
        overlap_watch: Callable[[], Callable[[], bool]],
    ) -> None:
        self._devices, self._artifacts, self._work = devices, artifacts, work
        self._timeout_seconds, self._overlap_watch = child_timeout_seconds, overlap_watch
        self._builders: Pool[Builder] = Pool()
        self._checkers: Pool[Checker] = Pool()
        self._measurers: Pool[Measurer] = Pool()

    def perform(
        self, step: Step, state: CaseState, case: Case, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        """Events of a step as they happen. DeviceVanished, and what ``search.perform`` raises."""
        device = self._device(device_id)

        def make() -> Builder:
            return self._new_builder(device, device.compile_cpus)

        if isinstance(step, FreshBuild):
            # With one of its own: it would end the warm child of another.
            with self._builders.single(make) as builder:
                yield from perform(step, state, case, self._tools(cancelled, builder=builder))
        elif isinstance(step, Check):
            # Architectures share checkers: what is simulated is the source.
            with self._checkers.lent(device.target, lambda: self._new_checker(device)) as checker:
                located = self._libraries(device, cancelled)
                yield from perform(step, state, case, self._tools(cancelled, checker=checker, located=located))
        elif queue_of(step) == "compile":
            with self._builders.lent((device.target, device.architecture), make) as builder:
                yield from perform(step, state, case, self._tools(cancelled, builder=builder))
        elif device.timed:
            kind = (device.id, device.measure_cpus, state.cache_context)
            # An idle child on the same GPU would count as somebody else's load.
            self._measurers.rest(lambda other: other != kind and isinstance(other, tuple) and other[0] == device.id)
            with self._measurers.lent(kind, lambda: self._new_measurer(device, state.cache_context)) as measurer:
                located = self._libraries(device, cancelled)
                yield from perform(step, state, case, self._tools(cancelled, measurer=measurer, located=located))
        else:
            yield from perform(step, state, case, self._tools(cancelled))

    def replay(
        self, step: ReplayStep, state: ReplayState, *, device_id: str, cancelled: Callable[[], bool]
    ) -> Iterator[ReplayRecord]:
        """Records of a step of an acceptance, with builders and a measurer of its own. As :meth:`perform` raises."""
        device = self._device(device_id)
        tools = ReplayTools(
            builder=lambda cpus: self._new_builder(device, cpus),
            build_cpus=tuple(sorted({*device.compile_cpus, *device.measure_cpus})),
            measurer=lambda: self._new_measurer(device, state.replay.cache_context),
            cancelled=cancelled,
            compile_timeout_seconds=self._timeout_seconds,
            located=self._libraries(device, cancelled),
        )
        yield from perform_replay(step, state, tools)

    def rest(self) -> None:
        """Ends the children of builders, checkers and measurers that do nothing now."""
        self._builders.rest()
        self._checkers.rest()
        self._measurers.rest()

    def close(self) -> None:
        """Ends every child. Tasks must have been told to stop."""
        self._builders.close()
        self._checkers.close()
        self._measurers.close()

    def _tools(
        self,
        cancelled: Callable[[], bool],
        *,
        builder: Builder | None = None,
        checker: Checker | None = None,
        measurer: Measurer | None = None,
        located: Located = built_here,
    ) -> Tools:
        return Tools(
            builder=builder,  # type: ignore[arg-type]  # each step has the tool that it needs
            measurer=measurer,  # type: ignore[arg-type]
            checker=checker,
            cancelled=cancelled,
            overlapped=self._overlap_watch(),
            compile_timeout_seconds=self._timeout_seconds,
            located=located,
        )

    def _libraries(self, device: DeviceSpec, cancelled: Callable[[], bool]) -> Libraries:
        return Libraries(
            self._artifacts,
            lambda: self._new_builder(device, device.compile_cpus),
            sources=not device.timed,
            compile_timeout_seconds=self._timeout_seconds,
            cancelled=cancelled,
        )

    def _device(self, device_id: str) -> DeviceSpec:
        device = self._devices().get(device_id)
        if device is None:
            raise DeviceVanished(f"device {device_id} is not attached any more")
        return device

    def _new_builder(self, device: DeviceSpec, cpus: Sequence[int]) -> Builder:
        return Builder(self._artifacts, cpus=cpus, target=device.target, architecture=device.architecture)

    def _new_checker(self, device: DeviceSpec) -> Checker:
        return SimulationChecker(
            self._artifacts,
            self._work / "simulating",
            cpus=device.compile_cpus,
            child_timeout_seconds=self._timeout_seconds,
        )

    def _new_measurer(self, device: DeviceSpec, cache_context: CacheContext) -> Measurer:
        return Measurer(
            device,
            self._work / "measuring",
            child_timeout_seconds=self._timeout_seconds,
            cache_context=cache_context,
        )

"""The Measurer: what the pipeline and the workers call to check and time candidates on one device. Parent side.

No numpy, no torch, no candidate code in this process: everything runs in children (``kernel_child``, ``torch_child``)
that are kept alive across calls and replaced when a candidate killed, hung or tainted one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from search.children.child import ChildGone, ChildTimeout
from search.device.spec import CacheContext, DeviceSpec, check_cache_context
from search.errors import Cancelled, ChildFailed, DeviceContended, InvalidInput, Problem
from search.measuring.baselines import measure_baseline
from search.measuring.benches import ChildKind, Children, children_of
from search.measuring.device_lock import CoreTurns, DeviceLock
from search.measuring.finals import measure_finals
from search.measuring.progress import DOING, IDLE
from search.measuring.protocol import (
    BASELINES,
    PROTOCOLS,
    BaselineSamples,
    Checks,
    FinalsSamples,
    MeasureItem,
    MeasureResult,
    Phase,
    PhaseTiming,
    Timing,
    timing_from_document,
)
from search.measuring.rejections import died, timed_out
from search.measuring.workbench import Asked, Deadline, Timeouts, Workbench, own_work_seconds, utc_now
from search.outcome import Rejected
from search.program.case import Case

Measured = TypeVar("Measured")
CONTENDED_POLL_SECONDS = 2.0
"""How long to wait for others on a GPU before looking again."""


def _never() -> bool:
    return False


class Measurer:
    """Measures on one device, one thing at a time, host-wide.

    Thread-safe: calls wait for each other, and for other processes that measure on the device. Generators take the
    device for one item at a time. Every method raises Cancelled when ``cancelled`` says so (the child is killed),
    ChildFailed when a child of ours fails by itself, ToolchainUnavailable when the timing loop cannot be built.
    """

    def __init__(
        self,
        device: DeviceSpec,
        work_dir: Path | str,
        *,
        lock_dir: Path | None = None,
        child_timeout_seconds: float = 60.0,
        prepare_timeout_seconds: float = 600.0,
        memory_limit_bytes: int | None = None,
        cache_context: CacheContext = "warm",
        contended_patience_seconds: float = 600.0,
        children: Children | None = None,
    ) -> None:
        """``cache_context``: on a GPU, whether buffers are reused (warm) or rotate through more than its cache (cold).
        ``contended_patience_seconds``: how long to wait while others compute on a GPU. ``children``: others than the
        device's own, for rehearsals."""
        if device.target != "cpu" and device.uuid is None:
            message = "nothing runs on a compile-only device; it cannot be measured"
            raise InvalidInput([Problem(field="/device", value=device.id, message=message, allowed="an attached one")])
        check_cache_context(cache_context, device)
        self.device, self.cache_context = device, cache_context
        self._work_dir = Path(work_dir)
        self._work_dir.mkdir(parents=True, exist_ok=True)
        self._timeouts = Timeouts(item_seconds=child_timeout_seconds, prepare_seconds=prepare_timeout_seconds)
        self._contended_patience_seconds = contended_patience_seconds
        self._device_lock = DeviceLock(device.uuid or device.id, lock_dir=lock_dir)
        self._core = CoreTurns(device.measure_cpus, lock_dir=lock_dir)
        self._turn = threading.Lock()
        self._closed = False
        children = children or children_of(device, self._work_dir, cache_context=cache_context)
        limit = memory_limit_bytes if memory_limit_bytes is not None else _physical_memory_bytes()
        self._kernels = self._workbench(children.kernels, children, limit)
        # Torch's own pools of address space are not bounded on any device.
        self._torch = self._workbench(children.torch, children, None)

    def _workbench(self, kind: ChildKind, children: Children, memory_limit_bytes: int | None) -> Workbench:
        return Workbench(
            kind.module,
            kind.arguments,
            environment=kind.environment,
            memory_limit_bytes=memory_limit_bytes if kind.bounded else None,
            work_dir=str(self._work_dir),
            cpus=self.device.measure_cpus[:1],
            lock_fd=self._device_lock.fileno(),
            timeouts=self._timeouts,
            kin=self._device_pids if children.on_gpu else None,
        )

    def _device_pids(self) -> list[int]:
        """Both children as the GPU's driver counts processes."""
        return sorted(self._kernels.device_pids | self._torch.device_pids)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the children and let go of the device. Idempotent."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            try:
                self._kernels.discard()
                self._torch.discard()
            finally:
                self._core.close()
                self._device_lock.close()

    def search(
        self, case: Case, items: Sequence[MeasureItem], *, cancelled: Asked = _never, protocol: str = "search"
    ) -> Iterator[MeasureResult]:
        """Check each item on the three input sets, then sample ``device_batch``; results in the order of the items."""
        for item in items:
            yield self._one(case, item, protocol=protocol, phases=("device_batch",), check=True, cancelled=cancelled)

    def check(self, case: Case, items: Sequence[MeasureItem], *, cancelled: Asked = _never) -> Iterator[MeasureResult]:
        """Check each item on the three input sets; nothing is timed."""
        for item in items:
            yield self._one(case, item, protocol="search", phases=(), check=True, cancelled=cancelled)

    def replay(
        self,
        case: Case,
        item: MeasureItem,
        *,
        phases: Sequence[Phase] = ("device_batch", "e2e_batch"),
        cancelled: Asked = _never,
        protocol: str = "acceptance",
    ) -> MeasureResult:
        """Check one item on the three input sets, then sample these phases: one arm of an acceptance."""
        return self._one(case, item, protocol=protocol, phases=phases, check=True, cancelled=cancelled)

    def retime(
        self, case: Case, item: MeasureItem, *, cancelled: Asked = _never, protocol: str = "search"
    ) -> PhaseTiming | Rejected:
        """Sample ``device_batch`` once more, without a check; a Rejected if the item fails this time."""
        result = self._one(case, item, protocol=protocol, phases=("device_batch",), check=False, cancelled=cancelled)
        return result.rejection if result.rejection is not None else result.timing["device_batch"]

    def finals(
        self,
        case: Case,
        items: Sequence[MeasureItem],
        *,
        all_phases: Sequence[str] = (),
        protocol: str = "finals",
        sittings: int | None = None,
        cancelled: Asked = _never,
    ) -> FinalsSamples:
        """Sample the finalists interleaved in one child: round r begins with finalist r mod n. Items are not checked.

        ``all_phases``: ids that also get every phase, after the rounds. ``sittings``: fresh processes that share the
        rounds; default: the protocol's. A finalist that fails is rejected, and the others start over.
        """
        sampling = PROTOCOLS[protocol] if sittings is None else replace(PROTOCOLS[protocol], sittings=sittings)
        with self._device(cancelled):
            samples = self._alone(
                cancelled,
                lambda: measure_finals(
                    self._kernels,
                    case,
                    items,
                    all_phases=all_phases,
                    protocol=sampling,
                    timeouts=self._timeouts,
                    cancelled=cancelled,
                ),
            )
        phases = {id_: self._told(timing) for id_, timing in samples.extra_phases.items()}
        return replace(samples, extra_phases=phases)

    def baseline(
        self,
        case: Case,
        name: str,
        *,
        against: MeasureItem | None = None,
        cancelled: Asked = _never,
        protocol: str = "finals",
    ) -> BaselineSamples:
        """Sample a torch baseline in rounds paired with our kernel, on the same CPU, in buffers of the same kind.

        InvalidInput for an unknown name; anything the baseline itself fails at is ``error`` in the answer.
        """
        if name not in BASELINES:
            problem = Problem(field="/baselines", value=name, message="unknown baseline", allowed=list(BASELINES))
            raise InvalidInput([problem])
        with self._device(cancelled):
            samples = self._alone(
                cancelled,
                lambda: measure_baseline(
                    self._torch,
                    self._kernels,
                    case,
                    name,
                    against=against,
                    protocol=PROTOCOLS[protocol],
                    timeouts=self._timeouts,
                    cancelled=cancelled,
                ),
            )
        return replace(samples, timing=self._told(samples.timing))

    def copy(
        self, case: Case, size_bytes: int, *, cancelled: Asked = _never, protocol: str = "search"
    ) -> PhaseTiming | Rejected:
        """How long a GPU takes to copy so many bytes within its memory, in this measurer's cache context; a Rejected
        where there is not the memory for it."""
        with self._device(cancelled):

            def copied() -> Mapping[str, Any]:
                while True:
                    self._kernels.open(case, cancelled)
                    try:
                        return self._kernels.ask(
                            cancelled,
                            self._timeouts.item_seconds,
                            "copy",
                            size_bytes=size_bytes,
                            protocol=PROTOCOLS[protocol].document(),
                        )
                    except (ChildGone, ChildTimeout) as error:
                        shared = self._kernels.used
                        self._kernels.discard()
                        if not shared:  # else something that ran here earlier is to blame
                            raise ChildFailed(f"the device copies nothing: {error}") from error

            answer = self._alone(cancelled, copied)
            if answer["event"] == "fault":
                return Rejected.from_document(answer["rejection"])
            return self._told(timing_from_document(answer["timing"]))["device_batch"]

    def _told(self, timing: Timing) -> Timing:
        """The timing, saying so where it was not taken warm."""
        if self.cache_context == "warm":
            return timing
        return {phase: replace(taken, cache_context=self.cache_context) for phase, taken in timing.items()}

    @contextmanager
    def _device(self, cancelled: Asked) -> Iterator[None]:
        with self._turn:
            if self._closed:
                raise RuntimeError("this Measurer is closed")
            with self._device_lock.held(cancelled), self._core.held(cancelled):
                yield

    def _alone(self, cancelled: Asked, measure: Callable[[], Measured]) -> Measured:
        """What is measured while nobody else computes on the device: waits, and measures again from the start.

        DeviceContended when the others do not go. The device's lock is held all the while: they do not know it.
        """
        deadline = Deadline(self._contended_patience_seconds)
        while True:
            try:
                return measure()
            except DeviceContended:
                if deadline.left() == 0.0:
                    raise
            wait = Deadline(min(CONTENDED_POLL_SECONDS, deadline.left()))
            while wait.left():
                if cancelled():
                    raise Cancelled("cancelled while others compute on the device")
                time.sleep(min(0.05, wait.left()))

    def _one(
        self,
        case: Case,
        item: MeasureItem,
        *,
        protocol: str,
        phases: Sequence[Phase],
        check: bool,
        cancelled: Asked,
    ) -> MeasureResult:
        with self._device(cancelled):
            started = utc_now()
            answer = self._alone(cancelled, lambda: self._run(case, item, protocol, phases, check, cancelled))
            checks, rejection = answer.get("checks"), answer.get("rejection")
            return MeasureResult(
                id=item.id,
                checks=Checks.from_document(checks) if checks else None,
                timing=self._told(timing_from_document(answer.get("timing") or {})),
                rejection=Rejected.from_document(rejection) if rejection else None,
                started_at=started,
                finished_at=utc_now(),
            )

    def _run(
        self, case: Case, item: MeasureItem, protocol: str, phases: Sequence[Phase], check: bool, cancelled: Asked
    ) -> Mapping[str, Any]:
        seconds = self._timeouts.item_seconds + own_work_seconds(case)
        while True:
            self._kernels.open(case, cancelled)
            shared = self._kernels.used
            self._kernels.used = True
            try:
                answer = self._kernels.ask(
                    cancelled,
                    seconds,
                    "measure",
                    artifact=item.artifact.located_document(),
                    protocol=PROTOCOLS[protocol].document(),
                    phases=list(phases),
                    check=check,
                )
            except ChildTimeout:
                exit_ = self._kernels.discard()
                assert exit_ is not None
                doing = DOING.get(exit_.progress, "unknown")
                return {"rejection": timed_out(seconds, doing, exit_).document()}
            except ChildGone as gone:
                self._kernels.discard()
                if shared:  # an earlier item may have damaged the process: only a fresh child can tell
                    continue
                if gone.exit.progress == IDLE:
                    raise ChildFailed(f"the measuring child died by itself: {gone.exit.document()}") from None
                doing = DOING.get(gone.exit.progress, "unknown")
                return {"rejection": died(doing, gone.exit).document()}
            if answer["tainted"]:
                self._kernels.discard()
            return answer


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

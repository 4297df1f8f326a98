"""The child that measures on a GPU: ``python -m search.measuring.gpu_child ENTRY UUID warm|cold``. No torch.

Commands as in ``candidate_child``, and ``copy``; each may come with ``ours``, the processes (as the card counts them)
that are no strangers. Two answers more: ``contended`` (others compute on the card: nothing was measured) and
``unavailable`` (there is no device any more, or it fails by itself). After a fault that poisons the context an answer
is ``tainted``: only a fresh process has a fresh one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.children.entry import Channel, enter
from search.lowering.contract import Artifact
from search.lowering.cuda.resources import LAUNCH_LIMITS
from search.measuring.bench import Bench
from search.measuring.benches import CacheContext
from search.measuring.candidate_child import Answer, CandidateChild, Conditions, Taken
from search.measuring.gpu.card import Card
from search.measuring.gpu.conditions import Contended
from search.measuring.gpu.cubins import Cubins
from search.measuring.gpu.cuda_driver import CudaDriver
from search.measuring.gpu.driver import Driver, DriverFault
from search.measuring.gpu.loop import Loop
from search.measuring.gpu.memory import DeviceCopy, copies_of, copies_wanted
from search.measuring.gpu.nvml import NvmlCard
from search.measuring.gpu.sampler import Sampler
from search.measuring.progress import IDLE
from search.measuring.protocol import Phase, Protocol, Timing, timing_document
from search.measuring.serving import serve
from search.outcome import Rejected
from search.program.resolve import resolve_case


class CopyRefused(Exception):  # noqa: N818 - ends this process: the parent reports it as ours
    """The driver refused a copy or an allocation of ours as such: no candidate asked for it."""


class GpuChild(CandidateChild[Loop]):
    """State of the process: one device, one case with its device memory, and the item that is being paired."""

    fault = DriverFault

    def __init__(
        self,
        channel: Channel,
        *,
        open_card: Callable[[], Card],
        open_driver: Callable[[], Driver],
        cache_context: CacheContext,
    ) -> None:
        super().__init__(channel)
        self._open_card, self._open_driver = open_card, open_driver
        self._cold = cache_context == "cold"
        self._driver: Driver | None = None
        self._pids: tuple[int, ...] = ()
        self._copies: list[DeviceCopy] = []
        self._poisoned = False
        self._launched = False
        """Whether the present command has launched anything: before, no fault is its item's."""
        self._ran = False
        """Whether foreign code ran in this process."""

    def handlers(self) -> dict[str, Callable[..., Answer]]:
        """Every command."""
        commands = (self.case, self.measure, self.finals, self.pair_load, self.pair_sample, self.copy)
        return {command.__name__: self._guarded(command) for command in commands}

    def case(self, document: Mapping[str, Any], work_dir: str) -> Answer:
        """Put a case on the bench, in place of the one that was there."""
        self._channel.progress(IDLE)
        self._open()
        self._paired = None
        self._cubins.clear()
        self._release()
        self.bench = None  # the old buffers go before the new ones come
        self.bench = Bench(resolve_case(document, admitted=True), Path(work_dir))
        return {"event": "ready", "device_pids": list(self._pids)}

    def copy(self, size_bytes: int, protocol: Mapping[str, Any]) -> Answer:
        """How long the device takes to copy so many bytes, in this child's cache context: what a kernel that reads
        and writes as much can be compared with. A rejection where there is not the memory for it."""
        self._channel.progress(IDLE)
        driver = self._on_device()
        pairs = copies_of(driver, 2 * size_bytes) if self._cold else 1
        addresses: list[int] = []
        try:
            with self._ours():
                for _ in range(2 * pairs):
                    addresses.append(driver.allocate(size_bytes))
                calls = [
                    driver.bind_copy(addresses[2 * pair], addresses[2 * pair + 1], size_bytes) for pair in range(pairs)
                ]
                loop = Loop(driver, calls, in_flight=self._sampler.in_flight)
                timing = self._sampler.phases(loop, Protocol(**protocol), ("device_batch",))
        except DriverFault as fault:
            if fault.kind != "out_of_memory":
                raise
            return {"event": "fault", "rejection": self._charged(fault).document()}
        finally:
            for address in addresses:
                with contextlib.suppress(DriverFault):  # of a context that is poisoned, and says so by itself
                    driver.free(address)
        return {"event": "copied", "timing": timing_document(timing)}

    def _guarded(self, command: Callable[..., Answer]) -> Callable[..., Answer]:
        """The command with what may end any of them as an answer."""

        def guarded(ours: Sequence[int] = (), **fields: Any) -> Answer:
            if self._poisoned:  # whatever is asked now would be charged to the wrong item: a fresh process follows
                os._exit(1)
            self._launched = False
            try:
                if self._driver is not None:
                    self._sampler.ours = {os.getpid(), *self._pids, *ours}
                return command(**fields)
            except Contended as contended:
                return {"event": "contended", "pids": list(contended.pids)}
            except DriverFault as fault:
                if fault.kind == "poisoned":
                    fault = self._nobodys(fault)
                if fault.kind != "lost":
                    raise  # a call of ours was refused: no device is gone
                return {"event": "unavailable", "reason": str(fault)}

        return guarded

    def _open(self) -> None:
        """Open the device once. Processes that the card counts more with us on it are this one, whatever its number
        is to the card (in a container it is not what it is to us)."""
        if self._driver is not None:
            return
        card = self._open_card()
        before = {process.pid for process in card.processes(since_seconds=1.0)}
        try:
            driver = self._open_driver()
        except DriverFault as fault:  # of whatever kind: there is no device for us
            raise DriverFault(fault.code, "lost", fault.message) from fault
        self._pids = tuple(sorted({process.pid for process in card.processes(since_seconds=1.0)} - before))
        self._driver, self._sampler, self._cubins = driver, Sampler(card), Cubins(driver)

    def _on_device(self) -> Driver:
        assert self._driver is not None, "a case comes first"
        return self._driver

    def _load(self, artifact: Mapping[str, Any]) -> Loop:
        driver, case = self._on_device(), self._on_bench().case
        kernel = self._cubins.kernel(Artifact.from_document(artifact), case.dims, rows=case.rows)
        calls = [kernel.at(copy.addresses) for copy in self._on_copies()]
        return Loop(driver, calls, in_flight=self._sampler.in_flight)

    def _run_once(self, loaded: Loop) -> Mapping[str, Any]:
        first = self._on_copies()[0]
        with self._ours():
            first.upload()
        self._launching()
        loaded.run_first()
        with self._ours():
            first.download()
        return self._on_bench().output_arrays

    def _put_normal(self) -> None:
        self._on_bench().load_normal()
        with self._ours():
            for copy in self._on_copies():
                copy.upload()

    def _warm(self, loaded: Loop, seconds: float) -> float:
        self._launching()
        return loaded.warm_seconds_per_call(seconds)

    def _turn(self, loaded: Loop, calls: int) -> float:
        if self._on_bench().shares_buffers:
            self._put_normal()
        self._launching()
        loaded.settle()
        return loaded.device_seconds(calls) / calls

    def _sample(self, loaded: Loop, artifact: Mapping[str, Any], protocol: Protocol, phases: Sequence[Phase]) -> Timing:
        self._launching()
        return self._sampler.phases(loaded, protocol, phases)

    def _group(self, take: Callable[[], Taken]) -> tuple[Taken, Conditions | None]:
        return self._sampler.group(take)

    def _damage(self) -> Rejected | None:
        bench = self._on_bench()
        with self._ours():
            for copy in self._on_copies():
                copy.download()
                if (harm := bench.harm()) is not None:
                    return harm
        return None

    def _charged(self, fault: Exception) -> Rejected:
        """The kind of a fault decides; a device that is lost, or whose context broke before anything of this item ran,
        is nobody's fault."""
        assert isinstance(fault, DriverFault)
        detail = {"code": fault.code, "message": fault.message}
        if fault.code == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES":
            return Rejected(stage="resources", reason=LAUNCH_LIMITS, detail=detail)
        match fault.kind:
            case "lost":
                raise fault
            case "poisoned":
                if not self._launched:
                    raise self._nobodys(fault)
                self._poisoned = True
                return Rejected(stage="runtime", reason="device_fault", detail=detail)
            case "out_of_memory":
                return Rejected(stage="runtime", reason="out_of_device_memory", detail=detail)
            case "refused":
                return Rejected(stage="runtime", reason="driver_refused", detail=detail)

    def _tainted(self, rejection: Rejected | None) -> bool:
        return self._poisoned

    def _launching(self) -> None:
        self._launched = self._ran = True

    def _nobodys(self, fault: DriverFault) -> DriverFault:
        """A poisoned context that the present item is not to blame for. Where something ran here before, it may be to
        blame: this process ends, and the parent asks a fresh one. Where nothing did, the device fails by itself."""
        if self._ran:
            os._exit(1)
        return DriverFault(fault.code, "lost", f"before any kernel ran: {fault.message}")

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """Around allocations and copies: that they are refused is no candidate's doing."""
        try:
            yield
        except DriverFault as fault:
            if fault.kind == "refused":
                raise CopyRefused(str(fault)) from fault
            raise

    def _on_copies(self) -> list[DeviceCopy]:
        """The case's device memory, allocated when it is first needed."""
        if not self._copies:
            driver, bench = self._on_device(), self._on_bench()
            try:
                with self._ours():
                    for _ in range(copies_wanted(driver, bench, cold=self._cold)):
                        self._copies.append(DeviceCopy(driver, bench))
            except DriverFault:
                self._release()
                raise
        return self._copies

    def _release(self) -> None:
        for copy in self._copies:
            copy.free()
        self._copies = []


def main() -> None:
    """Enter before CUDA is loaded, then serve."""
    channel = enter(sys.argv[1])
    uuid, cache_context = sys.argv[2], sys.argv[3]
    child = GpuChild(
        channel,
        open_card=lambda: NvmlCard(uuid),
        open_driver=lambda: CudaDriver(uuid),
        cache_context="cold" if cache_context == "cold" else "warm",
    )
    serve(channel, child.handlers())


if __name__ == "__main__":
    main()

"""The child that measures on a GPU: ``python -m search.measuring.gpu_child ENTRY UUID warm|cold``. No torch.

Commands as in ``kernel_child``; each may come with ``ours``, the processes (as the card counts them) that are no
strangers. Three answers more: ``contended`` (others compute on the card: nothing was measured), ``unavailable`` (there
is no device any more) and, after a fault that poisons the context, ``tainted``: only a fresh process has a fresh one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.children.entry import Channel, enter
from search.lowering.contract import Artifact
from search.measuring.bench import Bench
from search.measuring.benches import CacheContext
from search.measuring.gpu.card import Card
from search.measuring.gpu.conditions import Contended
from search.measuring.gpu.cubins import Cubins
from search.measuring.gpu.cuda_driver import CudaDriver
from search.measuring.gpu.driver import Driver, DriverFault
from search.measuring.gpu.loop import Loop
from search.measuring.gpu.memory import DeviceCopy, copies_of, copies_wanted
from search.measuring.gpu.nvml import NvmlCard
from search.measuring.gpu.sampler import Sampler
from search.measuring.loading import LoadProblem
from search.measuring.progress import CHECKING, FINALS, IDLE, LOADING, TIMING
from search.measuring.protocol import OTHER_PHASES, Phase, Protocol, timing_document
from search.measuring.serving import serve
from search.measuring.timers import calls_per_batch, quiet_interpreter
from search.outcome import Rejected
from search.program.resolve import resolve_case

Answer = dict[str, Any]


class GpuChild:
    """State of the process: one device, one case with its device memory, and the item that is being paired."""

    def __init__(
        self,
        channel: Channel,
        *,
        open_card: Callable[[], Card],
        open_driver: Callable[[], Driver],
        cache_context: CacheContext,
    ) -> None:
        self._channel, self._open_card, self._open_driver = channel, open_card, open_driver
        self._cold = cache_context == "cold"
        self._driver: Driver | None = None
        self._pids: tuple[int, ...] = ()
        self._copies: list[DeviceCopy] = []
        self.bench: Bench | None = None
        self._paired: tuple[Loop, int] | None = None
        self._poisoned = False

    def handlers(self) -> dict[str, Callable[..., Answer]]:
        """Every command."""
        commands = (self.case, self.measure, self.finals, self.pair_load, self.pair_sample, self.copy)
        return {command.__name__: self._guarded(command) for command in commands}

    def case(self, document: Mapping[str, Any], work_dir: str) -> Answer:
        """Put a case on the bench, in place of the one that was there."""
        self._channel.progress(IDLE)
        self._open()
        self._paired = None
        self._release()
        self.bench = None  # the old buffers go before the new ones come
        self.bench = Bench(resolve_case(document, admitted=True), Path(work_dir))
        return {"event": "ready", "device_pids": list(self._pids)}

    def measure(
        self, artifact: Mapping[str, Any], protocol: Mapping[str, Any], phases: Sequence[Phase], check: bool
    ) -> Answer:
        """Check one item on every input set, then time it; a rejection says where it ended."""
        answer: Answer = {"event": "result", "checks": None, "timing": None, "rejection": None, "tainted": False}
        rejection: Rejected | None = None
        try:
            self._channel.progress(LOADING)
            loop = self._load(artifact)
            if check:
                self._channel.progress(CHECKING)
                verdict = self._on_bench().check(lambda: self._run_once(loop))
                answer["checks"] = verdict.checks.document()
                rejection, answer["tainted"] = verdict.rejection, verdict.tainted
            if rejection is None and phases:
                self._channel.progress(TIMING)
                self._upload_normal()
                timing = self._sampler.phases(loop, Protocol(**protocol), phases)
                rejection = self._harm()
                answer["timing"] = timing_document(timing)
        except LoadProblem as problem:
            rejection = problem.rejection
        except DriverFault as fault:
            rejection = self._charged(fault)
            answer["tainted"] = self._poisoned
        if rejection is not None:
            answer["timing"], answer["rejection"] = None, rejection.document()
        return answer

    def finals(
        self,
        artifacts: Sequence[Mapping[str, Any]],
        protocol: Mapping[str, Any],
        all_phases: Sequence[int],
        turns: Sequence[int],
    ) -> Answer:
        """Warm every item up, time each once per round, starting one further each round; then the extra phases."""
        sampling, index = Protocol(**protocol), 0
        loops: list[Loop] = []
        counts: list[int] = []
        try:
            for index, artifact in enumerate(artifacts):
                self._channel.progress(FINALS + index)
                if not loops:
                    self._upload_normal()
                loops.append(self._load(artifact))
                counts.append(calls_per_batch(sampling, loops[-1].warm_seconds_per_call(sampling.warmup_seconds)))
                if (harm := self._harm()) is not None:
                    return {"event": "fault", "index": index, "rejection": harm.document(), "tainted": True}
                self._channel.answer({"event": "warmed"})
            for turn in range(*turns):
                order = [(turn + step) % len(loops) for step in range(len(loops))]

                def take(order: Sequence[int] = order) -> list[float]:
                    nonlocal index
                    seconds = [0.0] * len(order)
                    with quiet_interpreter():
                        for index in order:
                            self._channel.progress(FINALS + index)
                            seconds[index] = self._turn(loops[index], counts[index])
                    return seconds

                seconds, conditions = self._sampler.group(take)
                self._channel.answer({"event": "round", "seconds": seconds, "conditions": conditions})
            for index in all_phases:
                self._channel.progress(FINALS + index)
                timing = self._sampler.phases(loops[index], sampling, OTHER_PHASES)
                self._channel.answer({"event": "phases", "index": index, "timing": timing_document(timing)})
        except LoadProblem as problem:
            return {"event": "fault", "index": index, "rejection": problem.rejection.document(), "tainted": True}
        except DriverFault as fault:
            return {"event": "fault", "index": index, "rejection": self._charged(fault).document(), "tainted": True}
        return {"event": "done", "calls_per_sample": counts}

    def pair_load(self, artifact: Mapping[str, Any], protocol: Mapping[str, Any]) -> Answer:
        """Warm one item up, to be sampled on request."""
        sampling = Protocol(**protocol)
        try:
            self._channel.progress(TIMING)
            loop = self._load(artifact)
            self._upload_normal()
            count = calls_per_batch(sampling, loop.warm_seconds_per_call(sampling.warmup_seconds))
        except LoadProblem as problem:
            return {"event": "fault", "rejection": problem.rejection.document()}
        except DriverFault as fault:
            return {"event": "fault", "rejection": self._charged(fault).document()}
        self._paired = (loop, count)
        return {"event": "ready", "calls_per_sample": count}

    def pair_sample(self) -> Answer:
        """One sample of the item that ``pair_load`` brought; seconds per call."""
        assert self._paired is not None, "pair_load comes first"
        loop, count = self._paired

        def take() -> float:
            with quiet_interpreter():
                return self._turn(loop, count)

        try:
            seconds, conditions = self._sampler.group(take)
        except DriverFault as fault:
            return {"event": "fault", "rejection": self._charged(fault).document()}
        return {"event": "sample", "seconds": seconds, "conditions": conditions}

    def copy(self, size_bytes: int, protocol: Mapping[str, Any]) -> Answer:
        """How long the device takes to copy so many bytes, in this child's cache context: what a kernel that reads
        and writes as much can be compared with."""
        driver = self._on_device()
        pairs = copies_of(driver, 2 * size_bytes) if self._cold else 1
        addresses: list[int] = []
        try:
            addresses += [driver.allocate(size_bytes) for _ in range(2 * pairs)]
            calls = [
                driver.bind_copy(addresses[2 * pair], addresses[2 * pair + 1], size_bytes) for pair in range(pairs)
            ]
            loop = Loop(driver, calls, in_flight=self._sampler.in_flight)
            timing = self._sampler.phases(loop, Protocol(**protocol), ("device_batch",))
        finally:
            for address in addresses:
                driver.free(address)
        return {"event": "copied", "timing": timing_document(timing)}

    def _guarded(self, command: Callable[..., Answer]) -> Callable[..., Answer]:
        """The command with what may end any of them as an answer."""

        def guarded(ours: Sequence[int] = (), **fields: Any) -> Answer:
            if self._poisoned:  # whatever is asked now would be charged to the wrong item: a fresh process follows
                os._exit(1)
            try:
                if self._driver is not None:
                    self._sampler.ours = {os.getpid(), *self._pids, *ours}
                return command(**fields)
            except Contended as contended:
                return {"event": "contended", "pids": list(contended.pids)}
            except DriverFault as fault:
                return {"event": "unavailable", "reason": str(fault)}

        return guarded

    def _open(self) -> None:
        """Open the device once. Processes that the card counts more with us on it are this one, whatever its number
        is to the card (in a container it is not what it is to us)."""
        if self._driver is not None:
            return
        card = self._open_card()
        before = {process.pid for process in card.processes(since_seconds=1.0)}
        driver = self._open_driver()
        self._pids = tuple(sorted({process.pid for process in card.processes(since_seconds=1.0)} - before))
        self._driver, self._sampler, self._cubins = driver, Sampler(card), Cubins(driver)

    def _on_bench(self) -> Bench:
        assert self.bench is not None, "a case comes first"
        return self.bench

    def _on_device(self) -> Driver:
        assert self._driver is not None, "a case comes first"
        return self._driver

    def _load(self, artifact: Mapping[str, Any]) -> Loop:
        driver, case = self._on_device(), self._on_bench().case
        kernel = self._cubins.kernel(Artifact.from_document(artifact), case.dims, rows=case.rows)
        calls = [kernel.at(copy.addresses) for copy in self._on_copies()]
        return Loop(driver, calls, in_flight=self._sampler.in_flight)

    def _on_copies(self) -> list[DeviceCopy]:
        """The case's device memory, allocated when it is first needed."""
        if not self._copies:
            driver, bench = self._on_device(), self._on_bench()
            try:
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

    def _upload_normal(self) -> None:
        """The ``normal`` inputs, poison and guards in every copy."""
        self._on_bench().load_normal()
        for copy in self._on_copies():
            copy.upload()

    def _run_once(self, loop: Loop) -> Mapping[str, Any]:
        first = self._on_copies()[0]
        first.upload()
        loop.run_first()
        first.download()
        return self._on_bench().output_arrays

    def _harm(self) -> Rejected | None:
        """Damage to guards or inputs of any copy since they were uploaded."""
        bench = self._on_bench()
        for copy in self._on_copies():
            copy.download()
            if (harm := bench.harm()) is not None:
                return harm
        return None

    def _turn(self, loop: Loop, count: int) -> float:
        """Seconds per call of one sample; untimed calls first leave the caches as calls of this one do."""
        if self._on_bench().shares_buffers:
            self._upload_normal()
        loop.settle()
        return loop.device_seconds(count) / count

    def _charged(self, fault: DriverFault) -> Rejected:
        """A fault as the rejection of the item that ran. A device that is lost is nobody's fault: raised again."""
        self._poisoned |= fault.kind == "poisoned"
        detail = {"code": fault.code, "message": fault.message}
        if fault.code == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES":
            return Rejected(stage="resources", reason="launch_limit", detail=detail)
        match fault.kind:
            case "lost":
                raise fault
            case "poisoned":
                return Rejected(stage="runtime", reason="device_fault", detail=detail)
            case "out_of_memory":
                return Rejected(stage="runtime", reason="out_of_device_memory", detail=detail)
            case "refused":
                return Rejected(stage="runtime", reason="driver_refused", detail=detail)


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

"""Baselines on a GPU: ``python -m search.measuring.gpu_torch_child ENTRY UUID warm|cold``. ``torch_child``'s commands.

Torch computes on copies of the bench's tensors; for the check they come back. What is timed rotates through as many
copies as kernels do: in the cold context torch finds no more in the cache than they. ``device_batch`` is device time of
a graph of the baseline's calls, as it is for our kernels; where torch cannot be captured, ``implementation`` says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from search.children.entry import enter
from search.measuring.bench import Bench
from search.measuring.benches import CacheContext
from search.measuring.gpu.card import Card
from search.measuring.gpu.conditions import Contended
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.loop import Loop
from search.measuring.gpu.memory import copies_wanted
from search.measuring.gpu.nvml import NvmlCard
from search.measuring.gpu.sampler import Sampler
from search.measuring.gpu.torch_clock import HostClock, TorchClock
from search.measuring.protocol import OTHER_PHASES, Protocol, timing_document
from search.measuring.serving import serve
from search.measuring.timers import quiet_interpreter
from search.measuring.torch_child import Baseline, TorchChild, as_arrays, as_torch

Answer = dict[str, Any]


class GpuTorchChild(TorchChild):
    """State of the process. ``place``: torch's device."""

    def __init__(
        self,
        *,
        open_card: Callable[[], Card],
        clock: Callable[[], TorchClock | HostClock],
        place: str,
        cache_context: CacheContext,
    ) -> None:
        super().__init__()
        self._cold = cache_context == "cold"
        self._open_card, self._make_clock, self._place = open_card, clock, place
        self._sampler: Sampler | None = None
        self._clock: TorchClock | HostClock | None = None
        self._loop: Loop | None = None
        self._copies: dict[str, Any] = {}
        self._pids: tuple[int, ...] = ()

    def handlers(self) -> dict[str, Callable[..., Answer]]:
        """Every command."""
        commands = (self.case, self.baseline, self.pair_sample, self.phases)
        return {command.__name__: self._guarded(command) for command in commands}

    def case(self, document: Mapping[str, Any], work_dir: str) -> Answer:
        """Put a case on the bench, in place of the one that was there."""
        self._loop, self._copies = None, {}
        self._open()
        return super().case(document, work_dir) | {"device_pids": list(self._pids)}

    def baseline(self, name: str, protocol: Mapping[str, Any]) -> Answer:
        """Prepare a baseline, check it on every input set, warm it up. What it fails at is ``error``."""
        assert self._clock is not None, "a case comes first"
        self._loop, self._clock.refused = None, None  # the last baseline's
        answer = super().baseline(name, protocol)
        answer["versions"] |= {"cuda": str(self._torch.version.cuda)}
        if "implementation" in answer and (refused := self._refused()) is not None:
            answer["implementation"] += f" (not captured in a graph, dispatch included: {refused})"
        if answer["error"] is not None:
            try:
                self._wait()
            except DriverFault as fault:
                if fault.kind == "lost":
                    raise
                answer["tainted"] = True  # the context is of no more use, and the next baseline not to blame
        return answer

    def pair_sample(self) -> Answer:
        """One sample of the prepared baseline; seconds per call, after one untimed call."""
        sampler, loop = self._ready()

        def take() -> float:
            with quiet_interpreter():
                loop.settle()
                return loop.device_seconds(self._calls) / self._calls

        seconds, conditions = sampler.group(take)
        return {"event": "sample", "seconds": seconds, "conditions": conditions}

    def phases(self, protocol: Mapping[str, Any]) -> Answer:
        """The phases that are not paired."""
        sampler, loop = self._ready()
        return {"event": "phases", "timing": timing_document(sampler.phases(loop, Protocol(**protocol), OTHER_PHASES))}

    def _tensors(self, bench: Bench) -> dict[str, Any]:
        torch = self._torch
        if self._place == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} sees no GPU: it was built for CUDA {torch.version.cuda}")
        by_buffer: dict[int, Any] = {}
        for name, buffer in bench.buffers.items():
            if id(buffer) not in by_buffer:
                host = as_torch(buffer.array, bench.case.dtypes[name])
                by_buffer[id(buffer)] = torch.empty_like(host, device=self._place)
            self._copies[name] = by_buffer[id(buffer)]
        return dict(self._copies)

    def _results(self, bench: Bench, prepared: Baseline) -> dict[str, Any]:
        """Outputs that torch wrote into our copies come back into the bench's buffers, poison and all."""
        self._copy(bench, back=False)
        outputs = prepared.checked()
        self._wait()
        arrays = as_arrays(bench, {name: tensor.cpu() for name, tensor in outputs.items()})
        self._copy(bench, back=True)
        ours = {name for name, tensor in outputs.items() if tensor.data_ptr() == self._copies[name].data_ptr()}
        return {name: bench.buffers[name].array if name in ours else array for name, array in arrays.items()}

    def _warm(self, prepared: Baseline, seconds: float) -> float:
        bench = self._on_bench()
        self._copy(bench, back=False)
        prepared.prepare()
        prepared.call()  # what is compiled or tuned at the first call must not be captured
        self._wait()
        assert self._clock is not None
        assert self._sampler is not None
        count = copies_wanted(self._clock, bench, cold=self._cold)
        self._loop = Loop(self._clock, self._rotated(prepared, count), in_flight=self._sampler.in_flight)
        return self._loop.warm_seconds_per_call(seconds)

    def _rotated(self, prepared: Baseline, count: int) -> list[Callable[[], None]]:
        """The baseline over so many copies of its tensors. Where there are several, each holds its last results: what
        torch allocates inside a call would else be the memory, warm, of the call before."""
        results: list[Any] = [None] * count

        def on_copy(place: int) -> Callable[[], None]:
            call = prepared.call if place == 0 else prepared.over(_cloned(prepared.tensors))

            def once() -> None:
                found = call()
                results[place] = found if count > 1 else None

            return once

        calls = [on_copy(place) for place in range(count)]
        for call in calls:  # before anything is captured
            call()
        self._wait()
        return calls

    def _copy(self, bench: Bench, *, back: bool) -> None:
        """Every tensor from the bench to the device, or back."""
        for name, tensor in self._copies.items():
            host = as_torch(bench.buffers[name].array, bench.case.dtypes[name])
            if back:
                host.copy_(tensor)
            else:
                tensor.copy_(host)
        self._wait()

    def _wait(self) -> None:
        if self._clock is not None:
            self._clock.synchronize()

    def _refused(self) -> str | None:
        """Why the present baseline's calls were not captured."""
        return None if self._clock is None else self._clock.refused

    def _ready(self) -> tuple[Sampler, Loop]:
        assert self._sampler is not None, "a case comes first"
        assert self._loop is not None, "a baseline comes first"
        return self._sampler, self._loop

    def _open(self) -> None:
        """Open the card once, and torch's context on it: the process that the card counts more then is this one."""
        if self._sampler is not None:
            return
        card = self._open_card()
        before = {process.pid for process in card.processes(since_seconds=1.0)}
        if self._place == "cpu" or self._torch.cuda.is_available():
            self._torch.empty(1, device=self._place)
        self._pids = tuple(sorted({process.pid for process in card.processes(since_seconds=1.0)} - before))
        self._sampler, self._clock = Sampler(card), self._make_clock()

    def _guarded(self, command: Callable[..., Answer]) -> Callable[..., Answer]:
        """The command with what may end any of them as an answer."""

        def guarded(ours: Sequence[int] = (), **fields: Any) -> Answer:
            if self._sampler is not None:
                self._sampler.ours = {os.getpid(), *self._pids, *ours}
            try:
                return command(**fields)
            except Contended as contended:
                return {"event": "contended", "pids": list(contended.pids)}
            except DriverFault as fault:
                if fault.kind == "lost":
                    return {"event": "unavailable", "reason": str(fault)}
                raise  # torch's own: its child is discarded, and the baseline says why

        return guarded


def _cloned(tensors: Sequence[Any]) -> list[Any]:
    """Copies with the same values; tensors that are one stay one."""
    clones = {tensor.data_ptr(): tensor.clone() for tensor in tensors}
    return [clones[tensor.data_ptr()] for tensor in tensors]


def main() -> None:
    """Enter before torch is imported, then serve."""
    channel = enter(sys.argv[1])
    uuid, cache_context = sys.argv[2], sys.argv[3]
    child = GpuTorchChild(
        open_card=lambda: NvmlCard(uuid),
        clock=TorchClock,
        place="cuda",
        cache_context="cold" if cache_context == "cold" else "warm",
    )
    serve(channel, child.handlers())


if __name__ == "__main__":
    main()

"""Torch's stream as a clock: events and graphs by torch.cuda; a host clock stands in where torch runs on a CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from search.measuring.gpu.driver import Call, DriverFault, fault_kind

_SAID = {
    "out of memory": "CUDA_ERROR_OUT_OF_MEMORY",
    "no CUDA-capable device": "CUDA_ERROR_NO_DEVICE",
    "busy or unavailable": "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "uncorrectable ECC error": "CUDA_ERROR_ECC_UNCORRECTABLE",
}
"""What torch says of a fault that is not a kernel's: the runtime's sentence, not the driver's name."""


def torch_fault(error: RuntimeError) -> DriverFault:
    """What torch raised when it waited for its stream."""
    words = str(error)
    code = next((code for phrase, code in _SAID.items() if phrase in words), "CUDA_ERROR_LAUNCH_FAILED")
    return DriverFault(code, fault_kind(code), words[:800])


class TorchClock:
    """See ``driver.Clock``: the current stream of torch's current device."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.refused: str | None = None
        """Why some calls were not captured: they were then called one by one, host and all."""

    @property
    def last_level_cache_bytes(self) -> int:
        """See ``driver.Driver``."""
        cuda = self._torch.cuda
        return int(cuda.get_device_properties(cuda.current_device()).L2_cache_size)

    def capture(self, calls: Sequence[Call]) -> Call:
        """See Clock. What cannot be captured (it allocates outside torch, or waits) is replayed from Python."""
        graph = self._torch.cuda.CUDAGraph()
        try:
            with self._torch.cuda.graph(graph):
                for call in calls:
                    call()
        except RuntimeError as error:
            self.refused = str(error).split("\n")[0][:200]
            self.synchronize()  # what cannot be mended comes out here
            return lambda: _each(calls)
        replay: Call = graph.replay
        return replay

    def event(self) -> Any:
        """See Clock."""
        return self._torch.cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        """See Clock."""
        event.record()

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """See Clock."""
        return float(start.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        """See Clock."""
        try:
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise torch_fault(error) from error


class HostClock:
    """See ``driver.Clock``: for rehearsals, where torch computes on the CPU at once."""

    refused: str | None = None

    def __init__(self, *, last_level_cache_bytes: int) -> None:
        self.last_level_cache_bytes = last_level_cache_bytes

    def capture(self, calls: Sequence[Call]) -> Call:
        """See Clock."""
        return lambda: _each(calls)

    def event(self) -> Any:
        """See Clock."""
        return [0.0]

    def record(self, event: Any) -> None:
        """See Clock."""
        event[0] = time.perf_counter()

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """See Clock."""
        return float(end[0] - start[0])

    def synchronize(self) -> None:
        """See Clock."""


def _each(calls: Sequence[Call]) -> None:
    for call in calls:
        call()

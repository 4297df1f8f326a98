"""The driver boundary: all that a GPU is asked to do while candidates are checked and timed. No numpy, no CUDA.

Two implementations: ``cuda_driver.CudaDriver`` (cuda.core) and ``rehearsal.RehearsalDriver``, which runs no GPU code:
for tests and dry runs alone. Times are seconds of the device's own clock, addresses are device addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from search.lowering.contract import Argument

FaultKind = Literal["poisoned", "out_of_memory", "lost", "refused"]
"""poisoned: the context is of no more use, and the process with it; lost: the device does not answer any more;
refused: this call failed and the next may succeed."""

Call = Callable[[], None]
"""Enqueues work on the driver's stream and returns at once."""


class DriverFault(Exception):  # noqa: N818 - what the driver answered, handled next to the call
    """A call of the driver failed. ``code`` is the driver's own name for it (``CUDA_ERROR_ILLEGAL_ADDRESS``)."""

    def __init__(self, code: str, kind: FaultKind, message: str = "") -> None:
        self.code, self.kind, self.message = code, kind, message
        super().__init__(f"{code}: {message}" if message else code)


_POISONED = frozenset(
    f"CUDA_ERROR_{word}"
    for word in [
        "ILLEGAL_ADDRESS",
        "LAUNCH_TIMEOUT",
        "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "ASSERT",
        "HARDWARE_STACK_ERROR",
        "CONTEXT_IS_DESTROYED",
        "TENSOR_MEMORY_LEAK",
        "CONTAINED",
        "UNKNOWN",
        "EXTERNAL_DEVICE",
    ]
)
_LOST = frozenset(
    f"CUDA_ERROR_{word}"
    for word in [
        "NO_DEVICE",
        "INVALID_DEVICE",
        "DEVICE_UNAVAILABLE",
        "ECC_UNCORRECTABLE",
        "NVLINK_UNCORRECTABLE",
        "SYSTEM_NOT_READY",
        "SYSTEM_DRIVER_MISMATCH",
        "DEVICE_NOT_LICENSED",
        "STUB_LIBRARY",
        "NOT_INITIALIZED",
        "DEINITIALIZED",
        "OPERATING_SYSTEM",
    ]
)


def fault_kind(code: str) -> FaultKind:
    """What a driver's error means for what comes after it."""
    if code == "CUDA_ERROR_OUT_OF_MEMORY":
        return "out_of_memory"
    if code in _LOST:
        return "lost"
    return "poisoned" if code in _POISONED else "refused"


class Clock(Protocol):
    """One stream of one device, as far as it is timed. Every method may raise DriverFault."""

    def capture(self, calls: Sequence[Call]) -> Call:
        """Calls recorded once as a graph; the call replays them in order, one after the other."""
        ...

    def event(self) -> Any:
        """A timing event, given back when nothing refers to it any more."""
        ...

    def record(self, event: Any) -> None:
        """Enqueue an event."""
        ...

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """Device time between two events that have happened."""
        ...

    def synchronize(self) -> None:
        """Wait for everything enqueued; faults of kernels come out here."""
        ...


class Driver(Clock, Protocol):
    """One device, one context, one stream. Not thread-safe. Every method may raise DriverFault."""

    name: str
    """``cuda``, or ``rehearsal``: then nothing is measured."""

    @property
    def last_level_cache_bytes(self) -> int:
        """Size of the cache that every multiprocessor shares."""
        ...

    def load(self, cubin: bytes) -> Any:
        """A module of compiled kernels, unloaded when nothing refers to it any more."""
        ...

    def function(self, module: Any, symbol: str, *, dynamic_shared_bytes: int) -> Any:
        """A kernel of a module, allowed so much dynamic shared memory."""
        ...

    def bind(
        self,
        function: Any,
        *,
        blocks: int,
        threads: int,
        arguments: Sequence[tuple[Argument, int]],
    ) -> Call:
        """A launch with fixed arguments: addresses of tensors, int32 of dims."""
        ...

    def bind_copy(self, target: int, source: int, size_bytes: int) -> Call:
        """A copy within device memory."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Address of new device memory, a multiple of 256."""
        ...

    def free(self, address: int) -> None:
        """Give memory back."""
        ...

    def upload(self, address: int, host_address: int, size_bytes: int) -> None:
        """Copy from this process, after everything enqueued; returns when it is done."""
        ...

    def download(self, host_address: int, address: int, size_bytes: int) -> None:
        """Copy to this process, after everything enqueued; returns when it is done."""
        ...

    def close(self) -> None:
        """Give everything back. Idempotent; never raises."""
        ...

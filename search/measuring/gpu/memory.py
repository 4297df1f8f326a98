"""A case's tensors in device memory, guards and all: each a copy of a guarded buffer of the bench. Child side.

What is checked is checked on the host: the bench fills its buffers, poison and guards included, they are copied to the
device whole, and whole they come back after the kernel. So a write beside a tensor shows as it does on a CPU.
"""

from __future__ import annotations

from typing import Protocol

from search.measuring.bench import Bench
from search.measuring.gpu.driver import Driver

ALIGNMENT_BYTES = 512
"""Of each tensor's first element, as torch's allocator has it."""
MOST_COPIES = 4096
ROTATED_CACHES = 2
"""Cold: buffers rotate through so many times the last-level cache."""


class Cached(Protocol):
    """What has a cache: a driver, torch's clock."""

    @property
    def last_level_cache_bytes(self) -> int:
        """Size of the cache that every multiprocessor shares."""
        ...


class DeviceCopy:
    """One copy of every tensor of a bench on the device."""

    def __init__(self, driver: Driver, bench: Bench) -> None:
        self._driver = driver
        self._parts: dict[int, tuple[int, int, int, int]] = {}
        """By id of the guarded buffer: allocation, device address of the span, its host address, its bytes."""
        self.addresses: dict[str, int] = {}
        try:
            for name, buffer in bench.buffers.items():
                if id(buffer) not in self._parts:
                    front = buffer.address - buffer.span_address
                    base = driver.allocate(buffer.span_bytes + ALIGNMENT_BYTES)
                    span = base + (-(base + front)) % ALIGNMENT_BYTES
                    self._parts[id(buffer)] = (base, span, buffer.span_address, buffer.span_bytes)
                self.addresses[name] = self._parts[id(buffer)][1] + buffer.address - buffer.span_address
        except BaseException:
            self.free()
            raise

    def upload(self) -> None:
        """Host to device."""
        for _, device, host, size in self._parts.values():
            self._driver.upload(device, host, size)

    def download(self) -> None:
        """Device to host; faults of kernels come out here."""
        for _, device, host, size in self._parts.values():
            self._driver.download(host, device, size)

    def free(self) -> None:
        """Give the memory back."""
        for base, *_ in self._parts.values():
            self._driver.free(base)
        self._parts.clear()


def copies_wanted(driver: Cached, bench: Bench, *, cold: bool) -> int:
    """How many copies are rotated: one, or as many as it takes to push each out of the cache before its turn."""
    return copies_of(driver, touched_bytes(bench)) if cold else 1


def copies_of(driver: Cached, size_bytes: int) -> int:
    """Copies of so many bytes that are rotated for each to be cold."""
    return min(MOST_COPIES, 1 + -(-ROTATED_CACHES * driver.last_level_cache_bytes // max(1, size_bytes)))


def touched_bytes(bench: Bench) -> int:
    """Bytes of all tensors of a bench, those that share a buffer once; guards are not touched."""
    return sum({id(buffer): buffer.array.nbytes for buffer in bench.buffers.values()}.values())

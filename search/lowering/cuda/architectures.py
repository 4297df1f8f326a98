"""What one streaming multiprocessor of each architecture has, and what a block may take of it.

Source: CUDA C++ Programming Guide, "Compute Capabilities" (technical specifications per compute capability), and, for
how registers and shared memory are handed out, NVIDIA's ``cuda_occupancy.h`` (CUDA 13.0), which a test compares with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

WARP_THREADS = 32


@dataclass(frozen=True, kw_only=True)
class SmLimits:
    """Limits of one multiprocessor and of one block on it."""

    threads_per_sm: int
    blocks_per_sm: int
    barriers_per_sm: int | None
    """None: NVIDIA's calculator counts barriers from compute capability 9.0 on only."""
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    """What a block may have, static and dynamic together, when the launch opts in; 48 KiB without."""
    threads_per_block: int = 1024
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    registers_per_thread: int = 255
    local_bytes_per_thread: int = 512 << 10
    """Local memory: what a thread keeps outside registers, its arrays and spills."""
    register_unit: int = 256
    """Registers are handed to a warp in multiples of this."""
    sub_partitions: int = 4
    """Each has its own share of the registers, and a warp lives in one of them."""
    reserved_shared_bytes_per_block: int = 1024
    """Taken by the driver."""
    shared_unit_bytes: int = 128
    """Shared memory is handed to a block in multiples of this."""


_AMPERE = SmLimits(
    threads_per_sm=2048,
    blocks_per_sm=32,
    barriers_per_sm=None,
    shared_bytes_per_sm=164 << 10,
    shared_bytes_per_block=163 << 10,
)
_HOPPER = replace(_AMPERE, barriers_per_sm=64, shared_bytes_per_sm=228 << 10, shared_bytes_per_block=227 << 10)
_GRAPHICS = replace(_AMPERE, threads_per_sm=1536, shared_bytes_per_sm=100 << 10, shared_bytes_per_block=99 << 10)
"""What cards for graphics have in common."""
_GRAPHICS_BLACKWELL = replace(_GRAPHICS, blocks_per_sm=24, barriers_per_sm=24)
ARCHITECTURES: Mapping[str, SmLimits] = {
    "sm_80": _AMPERE,
    "sm_86": replace(_GRAPHICS, blocks_per_sm=16),
    "sm_87": replace(_AMPERE, threads_per_sm=1536, blocks_per_sm=16),
    "sm_89": replace(_GRAPHICS, blocks_per_sm=24),
    "sm_90": _HOPPER,
    "sm_100": _HOPPER,
    "sm_103": _HOPPER,
    "sm_120": _GRAPHICS_BLACKWELL,
    "sm_121": _GRAPHICS_BLACKWELL,
}
"""Architecture → limits. One that is not here is not built for: what would fit could not be told."""


def limits_document(architecture: str) -> dict[str, int] | None:
    """The limits of an architecture as a device shows them; None for one that is not known."""
    limits = ARCHITECTURES.get(architecture)
    return None if limits is None else {name: value for name, value in vars(limits).items() if value is not None}


def unknown_limits(architecture: str) -> str | None:
    """Why nothing can be built for an architecture, because it is none of ``ARCHITECTURES``; or None."""
    if architecture in ARCHITECTURES:
        return None
    return f"the limits of {architecture[:80]} are not known; known are {', '.join(ARCHITECTURES)}"

"""How many blocks of a kernel one multiprocessor holds at once, and what keeps it from holding more. An estimate.

The rules are those of NVIDIA's occupancy calculator (``cuda_occupancy.h``): each resource allows so many blocks, the
scarcest decides. It says what fits, not what is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from search.lowering.cuda.architectures import WARP_THREADS, SmLimits


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Blocks and warps that one multiprocessor holds at once."""

    blocks_per_sm: int
    """0: a block does not fit at all."""
    warps_per_sm: int
    fraction: float
    """Of the warps that the multiprocessor can hold."""
    limited_by: str
    """``threads``, ``blocks``, ``registers``, ``shared_memory`` or ``barriers``: what allows the fewest blocks."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return dict(vars(self))


def estimate_occupancy(
    limits: SmLimits,
    *,
    threads_per_block: int,
    registers_per_thread: int,
    shared_bytes_per_block: int,
    barriers_per_block: int = 0,
) -> Occupancy:
    """Occupancy of a kernel; ``shared_bytes_per_block`` is static and dynamic together.

    Where two resources allow equally few blocks, the first in the order of ``limited_by`` is named.
    """
    warps = -(-threads_per_block // WARP_THREADS)
    allowed = {
        "threads": limits.threads_per_sm // (warps * WARP_THREADS),
        "blocks": limits.blocks_per_sm,
        "registers": _blocks_by_registers(limits, warps, registers_per_thread),
        "shared_memory": _blocks_by_shared_memory(limits, shared_bytes_per_block),
    }
    if barriers_per_block and limits.barriers_per_sm is not None:
        allowed["barriers"] = limits.barriers_per_sm // barriers_per_block
    if threads_per_block > limits.threads_per_block:
        allowed["threads"] = 0
    limited_by = min(allowed, key=lambda name: allowed[name])
    blocks = allowed[limited_by]
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        fraction=blocks * warps * WARP_THREADS / limits.threads_per_sm,
        limited_by=limited_by,
    )


def registers_of_warp(limits: SmLimits, registers_per_thread: int) -> int:
    """Registers that a warp is given: its threads' together, rounded up to the unit."""
    return -(-registers_per_thread * WARP_THREADS // limits.register_unit) * limits.register_unit


def registers_of_block(limits: SmLimits, threads_per_block: int, registers_per_thread: int) -> int:
    """Registers that the hardware wants free for a block: as if its warps filled whole rows of sub-partitions."""
    warps = -(-threads_per_block // WARP_THREADS)
    rounded = -(-warps // limits.sub_partitions) * limits.sub_partitions
    return rounded * registers_of_warp(limits, registers_per_thread)


def _blocks_by_registers(limits: SmLimits, warps: int, registers_per_thread: int) -> int:
    of_warp = registers_of_warp(limits, registers_per_thread)
    if registers_of_block(limits, warps * WARP_THREADS, registers_per_thread) > limits.registers_per_block:
        return 0
    if of_warp == 0:
        return limits.blocks_per_sm
    per_partition = limits.registers_per_sm // limits.sub_partitions // of_warp
    return per_partition * limits.sub_partitions // warps


def _blocks_by_shared_memory(limits: SmLimits, shared_bytes: int) -> int:
    if shared_bytes > limits.shared_bytes_per_block:
        return 0
    unit = limits.shared_unit_bytes
    of_block = -(-(shared_bytes + limits.reserved_shared_bytes_per_block) // unit) * unit
    return limits.shared_bytes_per_sm // of_block

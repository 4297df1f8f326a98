"""Occupancy against NVIDIA's published examples, and what is said to limit it."""

from __future__ import annotations

import pytest

from search.lowering.cuda.architectures import ARCHITECTURES
from search.lowering.cuda.occupancy import Occupancy, estimate_occupancy

SM_80, SM_90 = ARCHITECTURES["sm_80"], ARCHITECTURES["sm_90"]


def occupancy(threads: int, registers: int, shared_bytes: int = 0, barriers: int = 0, limits=SM_90) -> Occupancy:
    return estimate_occupancy(
        limits,
        threads_per_block=threads,
        registers_per_thread=registers,
        shared_bytes_per_block=shared_bytes,
        barriers_per_block=barriers,
    )


@pytest.mark.parametrize(
    ("threads", "registers", "blocks", "fraction"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy": 65,536 registers and 64 warps a multiprocessor.
        (128, 37, 12, 0.75),
        (320, 37, 4, 0.625),
        (128, 32, 16, 1.0),
        (1024, 32, 2, 1.0),
        # Programming Guide, "Launch Bounds": 1024 threads need 64 registers at most to be launched at all.
        (1024, 64, 1, 0.5),
        (1024, 65, 0, 0.0),
    ],
)
def test_published_examples(threads: int, registers: int, blocks: int, fraction: float) -> None:
    found = occupancy(threads, registers, limits=SM_80)
    assert (found.blocks_per_sm, found.fraction) == (blocks, fraction)
    assert found.warps_per_sm == blocks * -(-threads // 32)


@pytest.mark.parametrize(
    ("arguments", "limited_by", "blocks"),
    [
        ({"threads": 1024, "registers": 16}, "threads", 2),
        ({"threads": 32, "registers": 16}, "blocks", 32),
        ({"threads": 256, "registers": 255}, "registers", 1),
        ({"threads": 128, "registers": 16, "shared_bytes": 48 << 10}, "shared_memory", 4),  # 49 KiB each of 228
        ({"threads": 128, "registers": 16, "shared_bytes": 227 << 10}, "shared_memory", 1),
        ({"threads": 128, "registers": 16, "shared_bytes": (227 << 10) + 1}, "shared_memory", 0),
        ({"threads": 64, "registers": 16, "barriers": 16}, "barriers", 4),
        ({"threads": 1056, "registers": 16}, "threads", 0),
    ],
)
def test_the_scarcest_resource_is_named(arguments: dict[str, int], limited_by: str, blocks: int) -> None:
    found = occupancy(**arguments)
    assert (found.limited_by, found.blocks_per_sm) == (limited_by, blocks)


def test_an_architecture_with_less_shared_memory_holds_fewer_blocks() -> None:
    assert occupancy(128, 16, 40 << 10, limits=SM_80).blocks_per_sm == 4
    assert occupancy(128, 16, 40 << 10, limits=SM_90).blocks_per_sm == 5

"""Guards, poison and zones of a buffer; the faults are tried in a process of their own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from search.measuring.buffers import ALIGNMENT_BYTES, GUARD_ELEMENTS, ZONE_BYTES, GuardedBuffer


@pytest.mark.parametrize("shape", [(1,), (3, 7), (17, 65), (64, 256), (1024,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_layout(shape, dtype) -> None:
    buffer = GuardedBuffer(shape, dtype)
    assert buffer.array.shape == shape
    assert buffer.array.dtype == dtype
    assert buffer.array.flags.c_contiguous
    assert buffer.address == buffer.array.ctypes.data
    assert buffer.address % ALIGNMENT_BYTES == 0
    assert buffer.guard_elements >= 2 * GUARD_ELEMENTS
    assert buffer.damaged_guards() == 0


def _poke(buffer: GuardedBuffer, element: int, value: float = 0.0) -> None:
    ctypes.c_float.from_address(buffer.address + 4 * element).value = value


@pytest.mark.parametrize("element", [-GUARD_ELEMENTS, -1, 21, 20 + GUARD_ELEMENTS])
def test_every_near_guard_element_is_watched(element) -> None:
    buffer = GuardedBuffer((3, 7), np.float32)
    _poke(buffer, element)
    assert buffer.damaged_guards() == 1
    buffer.arm()
    assert buffer.damaged_guards() == 0


def test_a_read_outside_gives_nan() -> None:
    buffer = GuardedBuffer((3, 7), np.float32)
    for element in (-1, 21, -68, 88):
        assert np.isnan(ctypes.c_float.from_address(buffer.address + 4 * element).value)


def test_poison_marks_what_is_unwritten() -> None:
    buffer = GuardedBuffer((3, 7), np.float32)
    buffer.poison()
    assert np.isnan(buffer.array).all()
    buffer.array[:] = np.nan  # a written NaN is not the poison
    assert buffer.unwritten() is None
    buffer.poison()
    buffer.array[:, :6] = 1
    mask = buffer.unwritten()
    assert mask is not None
    assert np.argwhere(mask).tolist() == [[0, 6], [1, 6], [2, 6]]
    assert buffer.damaged_guards() == 0


def test_inputs_are_compared_bit_for_bit() -> None:
    buffer = GuardedBuffer((4,), np.float32)
    values = np.array([0.0, np.nan, -1.0, np.inf], dtype=np.float32)
    buffer.load(values)
    assert buffer.holds(values)
    buffer.array[0] = -0.0
    assert not buffer.holds(values)


def test_only_like_arrays_are_compared_and_loaded() -> None:
    buffer = GuardedBuffer((4,), np.float32)
    with pytest.raises(ValueError, match="bit for bit"):
        buffer.holds(np.zeros(4))
    with pytest.raises(TypeError):
        buffer.load(np.zeros(4))


@pytest.mark.parametrize("offset", [-ZONE_BYTES // 2, 4096, ZONE_BYTES // 2])
def test_a_far_access_faults(offset) -> None:
    code = f"""
import ctypes, numpy as np
from search.measuring.buffers import GuardedBuffer
buffer = GuardedBuffer((3, 7), np.float32)
ctypes.c_float.from_address(buffer.address + {offset}).value = 1.0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == -11

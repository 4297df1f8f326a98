"""Guarded buffers: what a kernel may touch, surrounded by what it may not. Child side; numpy.

One mapping per tensor: an inaccessible zone, guard elements, the tensor, guard elements up to the page's end, an
inaccessible zone. A write just outside changes a guard, a write far outside faults at once and is charged to the
kernel that did it. Guards of floats are NaNs, so that a read outside shows in the result.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

GUARD_ELEMENTS = 68
"""At least so many on each side."""
ALIGNMENT_BYTES = 64
ZONE_BYTES = 16 << 20
"""Address space (no memory) that faults on either side."""

_GUARD_BITS = {2: 0x7FED, 4: 0x7FED5EED}
_POISON_BITS = {2: 0x7FEF, 4: 0x7FDEAD0F}
"""Quiet NaNs of float32, of float16 and of bfloat16."""
_UNSIGNED: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class GuardedBuffer:
    """A C-ordered array inside guards. The memory lives as long as this object."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        size = self.dtype.itemsize
        count = int(np.prod(shape, dtype=np.int64))
        front = _round_up(GUARD_ELEMENTS * size, ALIGNMENT_BYTES)
        inner = _round_up(front + count * size + GUARD_ELEMENTS * size, mmap.PAGESIZE)
        self._mapping = mmap.mmap(-1, ZONE_BYTES + inner + ZONE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = np.frombuffer(self._mapping, dtype=np.uint8)
        base = whole.ctypes.data
        _forbid(base, ZONE_BYTES)
        _forbid(base + ZONE_BYTES + inner, ZONE_BYTES)
        accessible = whole[ZONE_BYTES : ZONE_BYTES + inner]
        bits = accessible.view(_UNSIGNED[size])
        skipped = front // size
        self._guards = (bits[:skipped], bits[skipped + count :])
        self._bits = bits[skipped : skipped + count]
        self.array: npt.NDArray[Any] = self._bits.view(self.dtype).reshape(shape)
        self.address = int(self._bits.ctypes.data)
        self.span_address = base + ZONE_BYTES
        """Where the front guards start."""
        self.span_bytes = inner
        """Guards on both sides and the tensor: all that is accessible."""
        assert self.address % ALIGNMENT_BYTES == 0
        self.arm()

    @property
    def guard_elements(self) -> int:
        """Guard elements on both sides together."""
        return sum(guard.size for guard in self._guards)

    def arm(self) -> None:
        """Write the guards."""
        for guard in self._guards:
            guard.fill(_GUARD_BITS[self.dtype.itemsize])

    def damaged_guards(self) -> int:
        """Number of guard elements that are no longer what :meth:`arm` wrote."""
        expected = _GUARD_BITS[self.dtype.itemsize]
        return sum(int(np.count_nonzero(guard != expected)) for guard in self._guards)

    def poison(self) -> None:
        """Fill the tensor with a bit pattern that no computation gives: a NaN with a payload of ours.

        As an int32 it is 2145299727, which no input holds and no extreme is.
        """
        self._bits.fill(_POISON_BITS[self.dtype.itemsize])

    def unwritten(self) -> npt.NDArray[np.bool_] | None:
        """Mask, in the tensor's shape, of the elements that still hold the poison; None if there are none."""
        still = self._bits == _POISON_BITS[self.dtype.itemsize]
        return still.reshape(self.array.shape) if still.any() else None

    def load(self, values: npt.NDArray[Any]) -> None:
        """Copy values of the same shape and dtype in."""
        np.copyto(self.array, values, casting="no")

    def holds(self, values: npt.NDArray[Any]) -> bool:
        """True when the tensor equals the values bit for bit (C-ordered, same dtype)."""
        if not values.flags.c_contiguous or values.dtype != self.dtype or values.shape != self.array.shape:
            raise ValueError("only a C-ordered array of the buffer's shape and dtype can be compared bit for bit")
        return bool(_libc.memcmp(self.address, values.ctypes.data, values.nbytes) == 0)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _forbid(address: int, length: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect of a guard zone failed")

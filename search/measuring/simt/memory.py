"""Tensors whose ends touch memory that must not be touched. Child side; numpy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from search.measuring.buffers import ZONE_BYTES, GuardedBuffer


class FlushBuffer(GuardedBuffer):
    """A guarded buffer that can lie flush against either inaccessible zone; guard elements fill the other side.

    Flush at the tail, the first byte past the tensor faults; flush at the head, the last byte before it does.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        super().__init__(shape, dtype)
        front, back = self._guards
        elements = front.size + self._bits.size + back.size
        self._elements: npt.NDArray[Any] = np.frombuffer(
            self._mapping, dtype=self._bits.dtype, count=elements, offset=ZONE_BYTES
        )
        self._shape = shape
        self.place("tail")

    def place(self, side: Literal["head", "tail"]) -> None:
        """Lay the tensor out at one end and write the guards. What it held is lost: :meth:`put` comes next."""
        count = self._bits.size
        skipped = 0 if side == "head" else self._elements.size - count
        self._guards = (self._elements[:skipped], self._elements[skipped + count :])
        self._bits = self._elements[skipped : skipped + count]
        self.array = self._bits.view(self.dtype).reshape(self._shape)
        self.address = int(self._bits.ctypes.data)
        self.arm()

    def taken(self) -> npt.NDArray[Any]:
        """A copy of the tensor's bits, flat."""
        bits: npt.NDArray[Any] = self._bits.copy()
        return bits

    def put(self, bits: npt.NDArray[Any]) -> None:
        """Set the tensor's bits to what :meth:`taken` gave."""
        self._bits[:] = bits

    def locate(self, address: int) -> dict[str, Any] | None:
        """Where an address lies as seen from this tensor; None if it is not in this buffer's mapping."""
        start = int(self._elements.ctypes.data) - ZONE_BYTES
        if not start <= address < start + 2 * ZONE_BYTES + self._elements.nbytes:
            return None
        size, offset = self._bits.nbytes, address - self.address
        if offset < 0:
            return {"side": "before", "offset_bytes": offset}
        if offset >= size:
            return {"side": "after", "offset_bytes": offset - size}
        return {"side": "inside", "offset_bytes": offset}

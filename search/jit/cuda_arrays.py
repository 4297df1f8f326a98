"""Torch tensors on one GPU as a kernel sees them."""

from __future__ import annotations

from typing import Any

from search.jit.arrays import TorchAccess, needed_bytes
from search.jit.signature import Signature

PACKET_BYTES = 16
"""Lanes read packets of up to so many; torch's own allocations are aligned many times better."""


class CudaAccess(TorchAccess):
    """Plain torch tensors on one CUDA device; see :class:`search.jit.arrays.Access`."""

    name = "torch.cuda"
    alignment_bytes = PACKET_BYTES

    def __init__(self, signature: Signature, *, refuse_grad: bool, index: int) -> None:
        super().__init__(signature, refuse_grad=refuse_grad)
        self.place = f"cuda:{index}"
        self._index = index

    def here(self, tensor: Any) -> bool:
        """Whether a tensor is on the device."""
        return bool(tensor.is_cuda and tensor.get_device() == self._index)

    def address(self, place: int, tensor: Any, shape: tuple[int, ...]) -> int | None:
        """See :class:`search.jit.arrays.Access`."""
        if type(tensor) not in self._plain or tensor.dtype is not self._dtypes[place] or tensor.shape != shape:
            return None
        if tensor.requires_grad and self._refuse_grad and self._torch.is_grad_enabled():
            return None
        try:
            if not self.here(tensor):
                return None
            if not tensor.is_contiguous() or tensor.is_neg():
                return None
            if tensor.untyped_storage().nbytes() < needed_bytes(tensor):
                return None
            address: int = tensor.data_ptr()
        except RuntimeError:  # sparse, or a stand-in without storage
            return None
        return None if address % PACKET_BYTES else address

    def empty(self, place: int, shape: tuple[int, ...]) -> Any:
        """See :class:`search.jit.arrays.Access`."""
        return self._torch.empty(shape, dtype=self._dtypes[place], device=self.place)

"""Tensors as a kernel sees them: an address, if everything else about them is right. torch and numpy, when in use."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import replace
from typing import Any, Protocol

from search.errors import InvalidInput, Problem
from search.jit.signature import Signature

_BYTE = ctypes.c_char
_NO_BFLOAT16 = "numpy has no bfloat16: use torch tensors, or arrays of ml_dtypes.bfloat16"
_UNKNOWN = object()
"""Stands for a dtype that nothing here can have."""
_RULE = "a torch tensor or a numpy array in this machine's memory"


class Access(Protocol):
    """One array library's tensors. A fast question with no words, and a slow one with all of them."""

    name: str

    def address(self, place: int, tensor: Any, shape: tuple[int, ...]) -> int | None:
        """Where the tensor at this place of the signature lies; None when anything about it is wrong."""
        ...

    def problems(self, place: int, tensor: Any, shape: tuple[int, ...]) -> list[Problem]:
        """Everything that is wrong with it; nothing when :meth:`address` has an answer."""
        ...

    def empty(self, place: int, shape: tuple[int, ...]) -> Any:
        """A new tensor for this place, not initialised."""
        ...

    def written(self, tensor: Any) -> None:
        """Told after a kernel wrote to a tensor that it did not make."""
        ...


class TorchAccess:
    """Plain torch tensors on the CPU."""

    name = "torch"
    place = "cpu"
    """Torch's word for the device that they must be on."""
    alignment_bytes: int | None = None
    """Of the first element; None: that of an element."""

    def __init__(self, signature: Signature, *, refuse_grad: bool) -> None:
        import torch

        self._torch, self._signature = torch, signature
        self._refuse_grad = refuse_grad
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._dtypes = tuple(getattr(torch, spec.dtype) for spec in signature.tensors)
        self._masks = tuple(spec.element_bytes - 1 for spec in signature.tensors)
        self._strided = torch.strided

    def address(self, place: int, tensor: Any, shape: tuple[int, ...]) -> int | None:
        """See :class:`Access`."""
        if type(tensor) not in self._plain or tensor.dtype is not self._dtypes[place] or tensor.shape != shape:
            return None
        if tensor.requires_grad and self._refuse_grad and self._torch.is_grad_enabled():
            return None
        try:
            if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
                return None
            address: int = tensor.data_ptr()
            if tensor.untyped_storage().nbytes() < needed_bytes(tensor):
                return None
        except RuntimeError:  # sparse, or a stand-in without storage (fake, batched, functional)
            return None
        return None if address & self._masks[place] else address

    def here(self, tensor: Any) -> bool:
        """Whether a tensor is on the device."""
        return bool(tensor.device.type == "cpu")

    def problems(self, place: int, tensor: Any, shape: tuple[int, ...]) -> list[Problem]:
        """See :class:`Access`."""
        torch, spec = self._torch, self._signature.tensors[place]
        at = f"/{spec.name}"
        if type(tensor) not in self._plain:
            what = f"a {type(tensor).__module__}.{type(tensor).__qualname__} where a torch tensor belongs"
            return [Problem(field=at, value=type(tensor).__qualname__, message=what, allowed="torch.Tensor")]
        out = []
        if not self.here(tensor):
            where = Problem(
                field=f"{at}/device", value=str(tensor.device), message="on another device", allowed=self.place
            )
            out.append(where)
        if tensor.layout is not self._strided:
            out.append(
                Problem(field=f"{at}/layout", value=str(tensor.layout), message="not dense", allowed="torch.strided")
            )
            return out
        if tensor.dtype is not self._dtypes[place]:
            out.append(_wrong_dtype(at, str(tensor.dtype).removeprefix("torch."), spec.dtype))
        if tuple(tensor.shape) != shape:
            out.append(_wrong_shape(at, tuple(tensor.shape), shape))
        elif not tensor.is_contiguous():
            out.append(_wrong_strides(at, tuple(tensor.stride()), shape))
        if tensor.is_neg():
            out.append(
                Problem(
                    field=at,
                    value="negated view",
                    message="a view whose sign is still to be applied; call resolve_neg()",
                    allowed="a resolved tensor",
                )
            )
        if self._refuse_grad and tensor.requires_grad and torch.is_grad_enabled():
            out.append(
                Problem(
                    field=f"{at}/requires_grad",
                    value=True,
                    message="kernels have no derivative: call under torch.no_grad() or inference_mode(), or detach()",
                    allowed=False,
                )
            )
        if not out:
            try:
                held, needed = tensor.untyped_storage().nbytes(), needed_bytes(tensor)
                if held < needed:
                    what = f"its storage was resized to {held} bytes under it, and it needs {needed}"
                    return [Problem(field=f"{at}/storage", value=held, message=what, allowed=f"at least {needed}")]
                out += _alignment(at, tensor.data_ptr(), self.alignment_bytes or spec.element_bytes)
            except RuntimeError as error:
                out.append(Problem(field=at, value="no storage", message=str(error).split("\n")[0], allowed=_RULE))
        return out

    def empty(self, place: int, shape: tuple[int, ...]) -> Any:
        """See :class:`Access`."""
        return self._torch.empty(shape, dtype=self._dtypes[place])

    def written(self, tensor: Any) -> None:
        """Autograd must notice that a saved tensor was overwritten."""
        if not tensor.is_inference():
            self._torch.autograd.graph.increment_version(tensor)


class NumpyAccess:
    """Numpy arrays (and memory maps)."""

    name = "numpy"

    def __init__(self, signature: Signature) -> None:
        import numpy

        self._numpy, self._signature = numpy, signature
        self._plain = (numpy.ndarray, numpy.memmap)
        self._dtypes = tuple(_numpy_dtype(spec.dtype) for spec in signature.tensors)
        self._buffers = tuple(spec.dtype != "bfloat16" for spec in signature.tensors)
        self._masks = tuple(spec.element_bytes - 1 for spec in signature.tensors)
        self._outputs = frozenset(signature.outputs)

    def address(self, place: int, tensor: Any, shape: tuple[int, ...]) -> int | None:
        """See :class:`Access`."""
        if type(tensor) not in self._plain or tensor.dtype != self._dtypes[place] or tensor.shape != shape:
            return None
        flags = tensor.flags
        if not flags.c_contiguous or (place in self._outputs and not flags.writeable):
            return None
        # the buffer protocol takes a third of the time, and gives nothing that is read-only, empty or bfloat16
        buffered = self._buffers[place] and flags.writeable and tensor.size
        address: int = ctypes.addressof(_BYTE.from_buffer(tensor)) if buffered else tensor.ctypes.data
        return None if address & self._masks[place] else address

    def problems(self, place: int, tensor: Any, shape: tuple[int, ...]) -> list[Problem]:
        """See :class:`Access`."""
        spec = self._signature.tensors[place]
        at = f"/{spec.name}"
        if type(tensor) not in self._plain:
            what = f"a {type(tensor).__module__}.{type(tensor).__qualname__} where a numpy array belongs"
            return [Problem(field=at, value=type(tensor).__qualname__, message=what, allowed="numpy.ndarray")]
        out = []
        if tensor.dtype != self._dtypes[place]:
            problem = _wrong_dtype(at, str(tensor.dtype), spec.dtype)
            if spec.dtype == "bfloat16":
                problem = replace(problem, message=f"{problem.message}; {_NO_BFLOAT16}")
            out.append(problem)
        if tensor.shape != shape:
            out.append(_wrong_shape(at, tensor.shape, shape))
        elif not tensor.flags.c_contiguous:
            strides = tuple(stride // max(tensor.itemsize, 1) for stride in tensor.strides)
            out.append(_wrong_strides(at, strides, shape))
        if place in self._outputs and not tensor.flags.writeable:
            out.append(
                Problem(field=f"{at}/writeable", value=False, message="an output must be writeable", allowed=True)
            )
        return out or _alignment(at, tensor.ctypes.data, spec.element_bytes)

    def empty(self, place: int, shape: tuple[int, ...]) -> Any:
        """See :class:`Access`."""
        if self._dtypes[place] is _UNKNOWN:
            name = self._signature.tensors[place].name
            raise InvalidInput([Problem(field=f"/{name}/dtype", value=None, message=_NO_BFLOAT16, allowed="bfloat16")])
        return self._numpy.empty(shape, dtype=self._dtypes[place])

    def written(self, tensor: Any) -> None:
        """Nobody is to be told."""


def _numpy_dtype(name: str) -> Any:
    """Numpy's dtype of a tensor; of bfloat16, which it has not, that of ml_dtypes, ``_UNKNOWN`` without it."""
    import numpy

    if name != "bfloat16":
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return _UNKNOWN
    return numpy.dtype(ml_dtypes.bfloat16)


def is_torch(tensor: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def is_numpy(tensor: Any) -> bool:
    """Whether it is a numpy array, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(tensor, numpy.ndarray)


def neither(name: str, tensor: Any, *, allowed: str | None = None) -> Problem:
    """The problem of something that is no array; ``allowed``: what belongs there, if not any array of this machine."""
    kind = type(tensor).__qualname__
    message = f"a {kind} is no tensor" if allowed is None else f"a {kind} where {allowed} belongs"
    return Problem(field=f"/{name}", value=kind, message=message, allowed=allowed or _RULE)


def needed_bytes(tensor: Any) -> int:
    """What a contiguous tensor needs of its storage, which may have been shrunk: ``resize_(0)`` is how sharded training
    frees it, and torch leaves the shape as it was."""
    needed: int = tensor.nbytes + tensor.storage_offset() * tensor.itemsize
    return needed


def _wrong_dtype(at: str, found: str, wanted: str) -> Problem:
    return Problem(
        field=f"{at}/dtype", value=found, message=f"{found}, and the kernel was built for {wanted}", allowed=wanted
    )


def _wrong_shape(at: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> Problem:
    message = f"{list(found)}, and the kernel was built for {list(wanted)}"
    return Problem(field=f"{at}/shape", value=list(found), message=message, allowed=list(wanted))


def _wrong_strides(at: str, found: tuple[int, ...], shape: tuple[int, ...]) -> Problem:
    wanted = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    message = f"{list(found)} elements, and the kernel needs a contiguous tensor, {wanted}: call contiguous()"
    return Problem(field=f"{at}/strides", value=list(found), message=message, allowed=wanted)


def _alignment(at: str, address: int, element_bytes: int) -> list[Problem]:
    if address % element_bytes == 0:
        return []
    message = f"starts {address % element_bytes} bytes after a multiple of {element_bytes}"
    return [
        Problem(
            field=f"{at}/alignment", value=address % element_bytes, message=message, allowed=f"{element_bytes} bytes"
        )
    ]

"""A kernel as operators of torch, so that ``torch.compile(fullgraph=True)`` has no break at it."""

from __future__ import annotations

import keyword
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from search.jit.kernel import Kernel

NAMESPACE = "tuner"


@dataclass(frozen=True, kw_only=True)
class TorchOps:
    """Two forms of one kernel, as ``torch.library.custom_op`` objects. Both have a fake implementation.

    Neither has a derivative: backward through ``functional`` raises what torch says of an operator without a formula;
    one may be added with ``functional.register_autograd``.
    """

    name: str
    """``tuner::rms_norm_<digest>``; the mutating form has ``_out`` behind it."""
    functional: Any
    """(inputs) → output or tuple of outputs. It allocates them; they alias nothing."""
    mutating: Any
    """(every tensor in declared order) → None. It writes the outputs; allocates nothing."""


_registered: dict[str, TorchOps] = {}
_registering = threading.Lock()


def register(kernel: Kernel) -> TorchOps:
    """The operators of a kernel; the same ones for every kernel of the same code and shape in this process."""
    digest, gpu = kernel.built.digest, kernel.built.gpu
    place = "" if gpu is None else f"_cuda{gpu}"
    name = f"{NAMESPACE}::{kernel.name}_{digest[:16]}{place}{'_any_rows' if kernel.signature.any_rows else ''}"
    with _registering:
        if name not in _registered:
            _registered[name] = _made(kernel, name)
        return _registered[name]


def _made(kernel: Kernel, name: str) -> TorchOps:
    import torch

    signature = kernel.signature
    inputs, outputs = signature.inputs, signature.outputs
    # the operator's own dispatch has already dealt with gradients
    access = kernel.torch_access(refuse_grad=False)
    parameters = [_parameter(spec.name) for spec in signature.tensors]
    returned = "Tensor" if len(outputs) == 1 else "(" + ", ".join("Tensor" for _ in outputs) + ")"
    written = {place: f"Tensor(a{place}!) {parameters[place]}" for place in outputs}

    def functional(*tensors: Any) -> Any:
        arranged = [None] * len(signature.tensors)
        for place, tensor in zip(inputs, tensors, strict=True):
            arranged[place] = tensor
        return kernel.run(arranged, access)

    def mutating(*tensors: Any) -> None:
        kernel.run(tensors, access)

    def functional_fake(*tensors: Any) -> Any:
        rows = _checked(kernel, dict(zip(inputs, tensors, strict=True)))
        made = tuple(
            torch.empty(
                signature.tensors[at].shape(rows),
                dtype=getattr(torch, signature.tensors[at].dtype),
                device=access.place,
            )
            for at in outputs
        )
        return made[0] if len(made) == 1 else made

    def mutating_fake(*tensors: Any) -> None:
        _checked(kernel, dict(enumerate(tensors)))

    functional_op = torch.library.custom_op(
        name,
        functional,
        mutates_args=(),
        schema=f"({', '.join(f'Tensor {parameters[place]}' for place in inputs)}) -> {returned}",
    )
    functional_op.register_fake(functional_fake)
    mutating_op = torch.library.custom_op(
        f"{name}_out",
        mutating,
        mutates_args=tuple(parameters[place] for place in outputs),
        schema=f"({', '.join(written.get(at, f'Tensor {word}') for at, word in enumerate(parameters))}) -> ()",
    )
    mutating_op.register_fake(mutating_fake)
    return TorchOps(name=name, functional=functional_op, mutating=mutating_op)


def _parameter(name: str) -> str:
    """A parameter's name in torch's schema language, which has words of its own."""
    taken = keyword.iskeyword(name) or name in ("self", "Tensor", "int", "float", "bool", "str", "Scalar", "out")
    return f"{name}_" if taken else name


def _checked(kernel: Kernel, tensors: dict[int, Any]) -> Any:
    """The number of rows (it may be a symbol). InvalidInput for shapes, dtypes and strides that a call would refuse."""
    import torch

    signature = kernel.signature
    place, axis = signature.row_source or (None, 0)
    known = (
        place in tensors and tensors[place].dim() == len(signature.tensors[place].extents)
        if place is not None
        else False
    )
    rows = tensors[place].shape[axis] if known and place is not None else signature.rows
    if not signature.any_rows and rows not in (0, signature.rows):
        rows = signature.rows
    problems: list[Problem] = []
    for at, tensor in tensors.items():
        spec = signature.tensors[at]
        wanted = spec.shape(rows)
        if tensor.dim() != len(wanted) or any(
            extent != other for extent, other in zip(tensor.shape, wanted, strict=True)
        ):
            problems.append(_problem(spec.name, "shape", _plain(tensor.shape), _plain(wanted)))
        elif not tensor.is_contiguous():
            problems.append(_problem(spec.name, "strides", _plain(tensor.stride()), "contiguous"))
        if tensor.dtype != getattr(torch, spec.dtype):
            problems.append(_problem(spec.name, "dtype", str(tensor.dtype), spec.dtype))
        if not _here(kernel, tensor):
            wanted_device = "cpu" if kernel.built.gpu is None else f"cuda:{kernel.built.gpu}"
            problems.append(_problem(spec.name, "device", str(tensor.device), wanted_device))
    if problems:
        raise InvalidInput(problems)
    return rows


def _here(kernel: Kernel, tensor: Any) -> bool:
    gpu, device = kernel.built.gpu, tensor.device
    return bool(device.type == "cpu" if gpu is None else device.type == "cuda" and device.index in (None, gpu))


def _problem(name: str, what: str, found: Any, wanted: Any) -> Problem:
    message = f"{found}, and the kernel was built for {wanted}"
    return Problem(field=f"/{name}/{what}", value=found, message=message, allowed=wanted)


def _plain(extents: Sequence[Any]) -> list[Any]:
    return [int(extent) if isinstance(extent, int) else str(extent) for extent in extents]

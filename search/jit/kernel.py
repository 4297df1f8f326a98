"""The Kernel: a compiled winner as a callable. It checks what it is given, calls native code, and does nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from catalogs import Entry, sha256_hex
from search.errors import InvalidInput, Problem
from search.jit.arguments import arrange, output_pairs, overlaps
from search.jit.arrays import Access, NumpyAccess, TorchAccess, is_numpy, is_torch, neither
from search.jit.errors import KernelFailed
from search.jit.library import Function
from search.jit.signature import Layout, Signature
from search.lowering.contract import Artifact
from search.program.case import Case
from search.space.candidate import Candidate

if TYPE_CHECKING:
    from search.jit.torch_op import TorchOps

Origin = Literal["pulled", "cached", "compiled"]
_LAYOUTS_KEPT = 1024


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a kernel is made of."""

    case: Case
    candidate: Candidate
    artifact: Artifact
    origin: Origin
    """``pulled``: the catalog's own library; ``cached``: built here before; ``compiled``: built now."""
    entry: Entry | None
    """The frozen winner; None for explicit parameters."""

    @property
    def digest(self) -> str:
        """sha256 (hex) of case, candidate and library."""
        library = {"sha256": self.artifact.library_sha256, "symbol": self.artifact.symbol}
        return sha256_hex({"case": self.case.document(), "candidate": self.candidate.document(), "library": library})


class Kernel:
    """Call it with the tensors in declared order, or by name; see :meth:`__call__`. Made by ``search.jit.build``.

    Thread-safe; native code runs without the interpreter lock, on the calling thread. Copies are the same kernel.
    """

    def __init__(self, built: Built, function: Function, *, any_rows: bool) -> None:
        self.built = built
        self.signature = Signature.of(built.case, any_rows=any_rows)
        self._function = function
        self._count, self._outputs = len(self.signature.tensors), self.signature.outputs
        self._pairs = output_pairs(self.signature)
        self._row_place, self._row_axis = self.signature.row_source or (0, -1)
        arguments = built.artifact.arguments
        sized = [argument.name for argument in arguments if argument.kind == "dim"]
        self._dims = tuple(None if name == self.signature.row_dim else built.case.dims[name] for name in sized)
        slots = [spec.name for spec in self.signature.tensors] + sized
        self._order = tuple(slots.index(argument.name) for argument in arguments)
        self._layouts: dict[int, Layout] = {}
        self._accesses: dict[str, Access] = {}
        self._ops: TorchOps | None = None
        self._registering = threading.Lock()
        self._compiling: Callable[[], bool] = _never
        if "torch" in sys.modules:
            self.torch_ops()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.built.case.kernel

    def __repr__(self) -> str:
        dims = ", ".join(f"{name}={extent}" for name, extent in self.built.case.dims.items())
        return f"Kernel({self.name}, {dims}, {self.built.origin}, code {self.built.artifact.artifact_sha256[:12]})"

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is native code of this process: pickle its catalog entry, and build it again")

    def __call__(self, /, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Run the kernel; the output, or a tuple of them in declared order.

        Positional tensors are the inputs, or inputs and outputs, in declared order; any may be given by name instead.
        Outputs may also be given as ``out`` (a tensor, a sequence, or name → tensor). Outputs that are not given are
        allocated; when they are given, nothing is. No rows at all are no work.

        Every tensor must be a contiguous torch tensor on the CPU or numpy array (all of one library) of the built
        shape and dtype, aligned to its element, and no output may overlap another tensor: otherwise InvalidInput
        names each. KernelFailed if the kernel returns a code.
        """
        if self._compiling():
            return self._traced(arrange(self.name, self.signature, tensors, out, named))
        if len(tensors) == self._count and out is None and not named:
            return self.run(tensors, self._access(tensors, 0))
        arranged = arrange(self.name, self.signature, tensors, out, named)
        if arranged[self._outputs[0]] is not None:
            return self.run(arranged, self._access(arranged, 0))
        if not self.signature.inputs:
            message = f"{self.name} has no inputs: give its outputs, which say whose tensors they are"
            raise InvalidInput([Problem(field="/out", value=None, message=message, allowed="tensors")])
        access = self._access(arranged, self.signature.inputs[0])
        return self.run(self.with_outputs(arranged, access), access)

    def run(self, tensors: Sequence[Any], access: Access) -> Any:
        """Check and run with every tensor in declared order; answers what :meth:`__call__` does."""
        layout = self._layout(tensors)
        addresses: list[int] = []
        for place, tensor in enumerate(tensors):
            address = access.address(place, tensor, layout.shapes[place])
            if address is None:
                self._refuse(tensors, access, layout)
            addresses.append(address)
        sizes = layout.byte_sizes
        for one, other in self._pairs:
            if addresses[one] < addresses[other] + sizes[other] and addresses[other] < addresses[one] + sizes[one]:
                raise InvalidInput(overlaps(self.signature, addresses, layout, self._pairs))
        if layout.rows:
            addresses += [layout.rows if extent is None else extent for extent in self._dims]
            code = self._function(*[addresses[slot] for slot in self._order])
            if code:
                raise KernelFailed(subject=self.name, code=code)
        outputs = [tensors[place] for place in self._outputs]
        for output in outputs:
            access.written(output)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def with_outputs(self, tensors: Sequence[Any], access: Access) -> tuple[Any, ...]:
        """The same tensors with new outputs; the inputs are checked before any memory is taken."""
        layout = self._layout(tensors)
        for place in self.signature.inputs:
            if access.address(place, tensors[place], layout.shapes[place]) is None:
                self._refuse(tensors, access, layout)
        made = list(tensors)
        for place in self._outputs:
            made[place] = access.empty(place, layout.shapes[place])
        return tuple(made)

    def torch_ops(self) -> TorchOps:
        """This kernel as operators of torch, registered once per process; see :class:`search.jit.torch_op.TorchOps`.

        Imports torch. Done by itself where torch was imported before the kernel was built or first called with a torch
        tensor; after that, calling the kernel inside ``torch.compile`` calls the operators.
        """
        with self._registering:
            if self._ops is None:
                import torch

                from search.jit.torch_op import register

                self._ops = register(self)
                self._compiling = torch.compiler.is_compiling
            return self._ops

    def _access(self, tensors: Sequence[Any], place: int) -> Access:
        tensor = tensors[place]
        kind = "torch" if is_torch(tensor) else "numpy" if is_numpy(tensor) else None
        if kind is None:
            raise InvalidInput([neither(self.signature.tensors[place].name, tensor)])
        access = self._accesses.get(kind)
        if access is None:
            if kind == "torch":
                self.torch_ops()
                access = TorchAccess(self.signature, refuse_grad=True)
            else:
                access = NumpyAccess(self.signature)
            self._accesses[kind] = access
        return access

    def _layout(self, tensors: Sequence[Any]) -> Layout:
        """Shapes at the tensors' number of rows; those of the built number when the kernel does not take so many."""
        rows = self.signature.rows
        if self._row_axis >= 0:
            shape = getattr(tensors[self._row_place], "shape", ())
            if len(shape) > self._row_axis:
                rows = shape[self._row_axis]
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self.signature.layout(rows if self.signature.takes(rows) else self.signature.rows)
            if layout.rows == rows:
                if len(self._layouts) >= _LAYOUTS_KEPT:
                    self._layouts.clear()
                self._layouts[rows] = layout
        return layout

    def _traced(self, tensors: Sequence[Any]) -> Any:
        """The call as ``torch.compile`` sees it."""
        ops = self._ops
        assert ops is not None
        if tensors[self._outputs[0]] is None:
            return ops.functional(*[tensors[place] for place in self.signature.inputs])
        ops.mutating(*tensors)
        outputs = tuple([tensors[place] for place in self._outputs])
        return outputs[0] if len(outputs) == 1 else outputs

    def _refuse(self, tensors: Sequence[Any], access: Access, layout: Layout) -> NoReturn:
        problems: list[Problem] = []
        for place, tensor in enumerate(tensors):
            if tensor is not None:
                problems += access.problems(place, tensor, layout.shapes[place])
        assert problems, "a tensor was refused without a reason"
        raise InvalidInput(problems)


def _never() -> bool:
    """Nothing is being traced before torch is there."""
    return False

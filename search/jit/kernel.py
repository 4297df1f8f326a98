"""The Kernel: a compiled winner as a callable. It checks what it is given, calls native code, and does nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from catalogs import Entry, sha256_hex
from search.errors import InvalidInput, Problem
from search.jit.arguments import apart, arrange, output_pairs, overlaps
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
    gpu: int | None = None
    """Torch's index of the GPU that it runs on; None for the CPU."""

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
        self._count = len(self.signature.tensors)
        self._inputs, self._outputs = self.signature.inputs, self.signature.outputs
        self._single = self._outputs[0] if len(self._outputs) == 1 else None
        self._pairs, self._shared = output_pairs(self.signature), self.signature.shared
        self._row_place, self._row_axis = self.signature.row_source or (0, -1)
        arguments = built.artifact.arguments
        sized = [argument.name for argument in arguments if argument.kind == "dim"]
        self._dims = tuple(None if name == self.signature.row_dim else built.case.dims[name] for name in sized)
        slots = [spec.name for spec in self.signature.tensors] + sized
        self._order = tuple(slots.index(argument.name) for argument in arguments)
        self._layouts: dict[int, Layout] = {}
        self._accesses: dict[type[Any], Access] = {}
        self._ops: TorchOps | None = None
        self._registering = threading.Lock()
        self._compiling: Callable[[], bool] = _never
        if "torch" in sys.modules and not self._shared:
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
        names each. An output that the program declares to share an input's buffer is that input's tensor: written in
        place, and given as the same tensor or not at all. KernelFailed if the kernel returns a code.

        A GPU kernel takes torch tensors on its GPU, aligned to 16 bytes. It enqueues one launch on torch's current
        stream and waits for nothing, so it may be captured in a CUDA graph. LaunchFailed if the driver refuses.
        """
        if self._compiling():
            return self._traced(arrange(self.name, self.signature, tensors, out, named))
        if named or (out is not None and (self._single is None or isinstance(out, list | tuple | Mapping))):
            arranged: Sequence[Any] = arrange(self.name, self.signature, tensors, out, named)
        elif out is None and len(tensors) == self._count:
            arranged = tensors
        elif len(tensors) == len(self._inputs):
            arranged = [None] * self._count
            for place, tensor in zip(self._inputs, tensors, strict=True):
                arranged[place] = tensor
            if out is not None and self._single is not None:
                arranged[self._single] = out
        else:
            arranged = arrange(self.name, self.signature, tensors, out, named)
        return self.run(arranged, self._access(arranged))

    def run(self, tensors: Sequence[Any], access: Access) -> Any:
        """Check and run with every tensor in declared order, None for outputs to be made; answers what
        :meth:`__call__` does."""
        layout = self._layout(tensors)
        shapes, addresses, outputs = layout.shapes, [], []
        for place, tensor in enumerate(tensors):
            fresh = tensor is None and place in self._outputs
            if fresh and place in self._shared:
                used = tensors[self._shared[place]]
            else:
                used = access.empty(place, shapes[place]) if fresh else tensor
            address = access.address(place, used, shapes[place])
            if address is None:
                self._refuse(tensors, access, layout)
            addresses.append(address)
            if place in self._outputs:
                outputs.append(used)
        sizes = layout.byte_sizes
        for one, other in self._pairs:
            if addresses[one] < addresses[other] + sizes[other] and addresses[other] < addresses[one] + sizes[one]:
                raise InvalidInput(overlaps(self.signature, addresses, layout, self._pairs))
        if self._shared and (problems := apart(self.signature, addresses)):
            raise InvalidInput(problems)
        if layout.rows:
            addresses += [layout.rows if extent is None else extent for extent in self._dims]
            code = self._function(*[addresses[slot] for slot in self._order])
            if code:
                raise KernelFailed(subject=self.name, code=code)
        given = tensors[self._outputs[0]] is not None
        for place, output in zip(self._outputs, outputs, strict=True) if given or self._shared else ():
            if given or place in self._shared:
                access.written(output)
        return outputs[0] if self._single is not None else tuple(outputs)

    def torch_access(self, *, refuse_grad: bool) -> TorchAccess:
        """How to read torch tensors on the device of this kernel."""
        if self.built.gpu is None:
            return TorchAccess(self.signature, refuse_grad=refuse_grad)
        from search.jit.cuda_arrays import CudaAccess

        return CudaAccess(self.signature, refuse_grad=refuse_grad, index=self.built.gpu)

    def torch_ops(self) -> TorchOps:
        """This kernel as operators of torch, registered once per process; see :class:`search.jit.torch_op.TorchOps`.

        Imports torch. Done by itself where torch was imported before the kernel was built or first called with a torch
        tensor; after that, calling the kernel inside ``torch.compile`` calls the operators.
        """
        if self._shared:
            names = [self.signature.tensors[place].name for place in self._shared]
            message = f"{self.name} writes {', '.join(names)} over an input and is no torch operator; call it itself"
            raise InvalidInput([Problem(field="", value=self.name, message=message, allowed=None)])
        with self._registering:
            if self._ops is None:
                import torch

                from search.jit.torch_op import register

                self._ops = register(self)
                self._compiling = torch.compiler.is_compiling
            return self._ops

    def _access(self, tensors: Sequence[Any]) -> Access:
        """How to read the tensors, by the kind of the first one."""
        first = self._inputs[0] if self._inputs else self._outputs[0]
        tensor = tensors[first]
        access = self._accesses.get(type(tensor))
        if access is None:
            if tensor is None and not self._inputs:
                message = f"{self.name} has no inputs: give its outputs, which say whose tensors they are"
                raise InvalidInput([Problem(field="/out", value=None, message=message, allowed="tensors")])
            if is_torch(tensor):
                if not self._shared:
                    self.torch_ops()
                access = self.torch_access(refuse_grad=True)
            elif is_numpy(tensor) and self.built.gpu is None:
                access = NumpyAccess(self.signature)
            else:
                where = None if self.built.gpu is None else f"a torch tensor on cuda:{self.built.gpu}"
                raise InvalidInput([neither(self.signature.tensors[first].name, tensor, allowed=where)])
            self._accesses[type(tensor)] = access
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
            return ops.functional(*[tensors[place] for place in self._inputs])
        ops.mutating(*tensors)
        outputs = tuple([tensors[place] for place in self._outputs])
        return outputs[0] if self._single is not None else outputs

    def _refuse(self, tensors: Sequence[Any], access: Access, layout: Layout) -> NoReturn:
        problems: list[Problem] = []
        for place, tensor in enumerate(tensors):
            if tensor is not None or place in self._inputs:
                problems += access.problems(place, tensor, layout.shapes[place])
        assert problems, "a tensor was refused without a reason"
        raise InvalidInput(problems)


def _never() -> bool:
    """Nothing is being traced before torch is there."""
    return False

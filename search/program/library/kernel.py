"""Kernel: a named program with the torch calls that compute the same. Data only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search.program.digest import program_digest
from search.program.document import dump_program, parse_program
from search.program.dtypes import tensor_dtypes
from search.program.ir import Program
from search.program.library.torch_call import TorchCall, allocation
from search.program.support import interchangeable


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel of the library, or of a package that adds to it."""

    name: str
    summary: str
    program: Program
    baseline: tuple[TorchCall, ...] = ()
    """The torch calls that compute the same; empty: the program is evaluated with torch operations."""
    tags: tuple[str, ...] = field(default=())
    package: str | None = None
    """The installed package that it comes from (name and version); None for a built-in kernel."""

    @property
    def params(self) -> dict[str, float | int]:
        """Default value of every param."""
        return {param.name: param.default for param in self.program.params}


def define(
    document: Mapping[str, Any], *, summary: str, baseline: tuple[TorchCall, ...] = (), tags: tuple[str, ...] = ()
) -> Kernel:
    """A kernel from its program's document."""
    program = parse_program(document)
    return Kernel(name=program.name, summary=summary, program=program, baseline=baseline, tags=tags)


def kernel_document(kernel: Kernel) -> dict[str, Any]:
    """JSON form, as ``GET /v1/kernels`` shows it: what may be chosen, the program, its digest and its baseline."""
    program = kernel.program
    declared = tensor_dtypes(program, {})
    return {
        "name": kernel.name,
        "summary": kernel.summary,
        "package": kernel.package,
        "tags": list(kernel.tags),
        "params": kernel.params,
        "dims": list(program.dims),
        "tensors": {
            tensor.name: {
                "axes": list(tensor.axes),
                "dims": [program.axis(axis).dim for axis in tensor.axes],
                "role": tensor.role,
            }
            for tensor in program.tensors
        },
        "dtypes": {
            tensor.name: {
                "default": tensor.dtype,
                "like": tensor.like,
                "allowed": list(interchangeable(declared[tensor.name])),
            }
            for tensor in program.tensors
        },
        "program": dump_program(program),
        "program_digest": program_digest(program, kernel.params),
        "baseline": {
            "calls": [call.document() for call in kernel.baseline],
            "allocation": allocation(kernel.baseline, tuple(t.name for t in program.tensors if t.role == "output")),
        },
    }

"""Kernel: a named program with the torch call that computes the same. Data only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search.program.digest import program_digest
from search.program.document import dump_program, parse_program
from search.program.ir import Program
from search.program.support import SUPPORTED_DTYPES


@dataclass(frozen=True, kw_only=True)
class TorchCall:
    """A call of a torch function, as data.

    In ``keywords`` the text ``"$name"`` stands for a tensor, param or dim of the program; lists are walked.
    """

    function: str
    """Dotted name: ``torch.nn.functional.rms_norm``."""
    keywords: Mapping[str, Any]
    fills: str
    """The output that the result is."""
    out: str | None = None
    """The keyword that takes a preallocated result; None if the function has none and always allocates."""

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords with each ``"$name"`` replaced by ``values[name]`` (KeyError if it is not there)."""
        return {keyword: _bound(value, values) for keyword, value in self.keywords.items()}

    @property
    def allocation(self) -> str:
        """Who owns the result's memory; recorded beside the baseline's timing."""
        return "preallocated" if self.out else "allocated_by_torch"

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "function": self.function,
            "keywords": dict(self.keywords),
            "fills": self.fills,
            "out": self.out,
            "allocation": self.allocation,
        }


def _bound(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return values[value[1:]]
    if isinstance(value, list | tuple):
        return [_bound(item, values) for item in value]
    return value


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A built-in kernel."""

    name: str
    summary: str
    program: Program
    baseline: TorchCall
    tags: tuple[str, ...] = field(default=())

    @property
    def params(self) -> dict[str, float | int]:
        """Default value of every param."""
        return {param.name: param.default for param in self.program.params}


def define(document: Mapping[str, Any], *, summary: str, baseline: TorchCall, tags: tuple[str, ...] = ()) -> Kernel:
    """A kernel from its program's document."""
    program = parse_program(document)
    return Kernel(name=program.name, summary=summary, program=program, baseline=baseline, tags=tags)


def kernel_document(kernel: Kernel) -> dict[str, Any]:
    """JSON form, as ``GET /v1/kernels`` shows it: what may be chosen, the program, its digest and its baseline."""
    program = kernel.program
    return {
        "name": kernel.name,
        "summary": kernel.summary,
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
            tensor.name: {"default": tensor.dtype, "like": tensor.like, "allowed": list(SUPPORTED_DTYPES)}
            for tensor in program.tensors
        },
        "program": dump_program(program),
        "program_digest": program_digest(program, kernel.params),
        "baseline": kernel.baseline.document(),
    }

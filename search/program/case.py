"""A Case: a Program with every param, dim and dtype resolved. What is planned, built, measured and frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.program.ir import DTYPE_BYTES, Program, Tensor


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel at one shape. Mappings are complete (no default is left to guess) and must not be mutated."""

    kernel: str
    """Library name, or the program's name when the program came as a document."""
    program: Program
    params: Mapping[str, float | int]
    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    from_document: bool = False
    """True when the caller sent the program; the document is then part of the case's JSON."""

    def extent(self, axis: str) -> int:
        """Number of points along an axis."""
        return self.dims[self.program.axis(axis).dim]

    def domain_extent(self, axes: tuple[str, ...]) -> int:
        """Number of points of a product of axes (1 for no axes)."""
        return math.prod(self.extent(axis) for axis in axes)

    @property
    def rows(self) -> int:
        """Number of program instances."""
        return self.extent(self.program.row_axis.name)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Shape of a tensor of the program."""
        return tuple(self.extent(axis) for axis in tensor.axes)

    def element_bytes(self, tensor: str) -> int:
        """Bytes of one element of a tensor."""
        return DTYPE_BYTES[self.dtypes[tensor]]

    @property
    def has_16_bits(self) -> bool:
        """Whether elements of some tensor are stored as 16 bits."""
        return any(self.element_bytes(tensor.name) == 2 for tensor in self.program.tensors)

    def document(self) -> dict[str, Any]:
        """JSON form, as echoed in jobs and trials: kernel, params, dims, dtypes (and program when it was sent)."""
        out: dict[str, Any] = {
            "kernel": self.kernel,
            "params": dict(self.params),
            "dims": dict(self.dims),
            "dtypes": dict(self.dtypes),
        }
        if self.from_document:
            from search.program.document import dump_program

            out["program"] = dump_program(self.program)
        return out

"""The grammar's words: what text may refer to (``Scope``), what is reserved, and how tightly operators bind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.program.ir import BINARY_OPS, COMPARE_OPS, DTYPE_BYTES, FUNCTIONS, Program

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38
CALLS = (*FUNCTIONS, "select", "cast", "index")
WORDS = ("and", "or", "not")
RESERVED = frozenset(
    (
        *CALLS,
        *WORDS,
        *DTYPE_BYTES,
        "bool",
        "inf",
        "nan",
        "true",
        "false",
        "True",
        "False",
        "None",
        "if",
        "else",
        "in",
        "is",
    )
)
"""Words that nothing in a program may be called."""

OR, AND, NOT, COMPARE, ADD, MULTIPLY, UNARY, ATOM = range(1, 9)
PRECEDENCE = {
    "or": OR,
    "and": AND,
    **dict.fromkeys(COMPARE_OPS, COMPARE),
    **{op: ADD if op in "+-" else MULTIPLY for op in BINARY_OPS},
}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The declared names that text may refer to. Whether a local name exists is the verifier's question."""

    params: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    row_axis: str | None = None
    tensors: Mapping[str, tuple[str, ...]]
    """Tensor name to its axes."""
    counters: tuple[str, ...] = ()
    """Indices of the loops around the text."""

    @property
    def linear(self) -> tuple[str, ...]:
        """The names that a subscript may be a sum of."""
        return (*self.axes, *self.dims, *self.params, *self.counters)


def program_scope(program: Program) -> Scope:
    """The scope that a program declares."""
    return Scope(
        params=tuple(param.name for param in program.params),
        dims=program.dims,
        axes=tuple(axis.name for axis in program.axes),
        row_axis=next((axis.name for axis in program.axes if axis.kind == "row"), None),
        tensors={tensor.name: tensor.axes for tensor in program.tensors},
    )

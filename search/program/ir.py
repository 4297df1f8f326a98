"""A Program: what one row (one program instance) computes. Frozen data; every other module reads it.

Expressions are a closed set of nodes. Text becomes nodes in ``expr.py``, legality is decided in ``verify.py``,
meaning is given by ``reference.py``, and JSON in and out is ``document.py``. Nothing here names a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

DType: TypeAlias = str
"""A dtype name: float32, float16, bfloat16, int32 or bool (bool only inside expressions)."""

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}

ReduceOp = Literal["sum", "product", "max", "min", "and", "or", "xor", "online_softmax", "welford", "argmax"]
STRUCTURED_OPS: tuple[ReduceOp, ...] = ("online_softmax", "welford", "argmax")
"""Ops whose partials hold several values and which deliver several row scalars; ``monoids.py`` says which."""
REDUCE_OPS: tuple[ReduceOp, ...] = ("sum", "product", "max", "min", "and", "or", "xor", *STRUCTURED_OPS)
ROUNDED_OPS: tuple[ReduceOp, ...] = ("sum", "product", "online_softmax", "welford")
"""Ops whose floating result depends, by rounding, on the order of the contributions."""

BINARY_OPS = ("+", "-", "*", "/")
COMPARE_OPS = ("<", "<=", ">", ">=", "==", "!=")
LOGICAL_OPS = ("and", "or")
FUNCTIONS: dict[str, int] = {
    "exp": 1,
    "log": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "tanh": 1,
    "erf": 1,
    "sigmoid": 1,
    "abs": 1,
    "min": 2,
    "max": 2,
}
"""Function name to number of arguments; ``select`` and ``cast`` have nodes of their own."""


# --- expressions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Const:
    """A literal number."""

    value: float | int | bool


@dataclass(frozen=True, kw_only=True)
class Name:
    """A param, a dim, a row scalar (``let`` or a finalized reducer), or a tile at the current element."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Index:
    """``index(axis)``: the current coordinate along an axis, an int32."""

    axis: str


@dataclass(frozen=True, kw_only=True)
class Affine:
    """One tensor subscript: ``sum(coefficient * name) + constant``; names are axes, dims and integer params.

    At most one name is a column axis. ``x`` without brackets has the natural subscript of each of its axes.
    """

    terms: tuple[tuple[str, int], ...]
    constant: int = 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """A tensor element at affine subscripts, one per axis of the tensor."""

    tensor: str
    index: tuple[Affine, ...]


@dataclass(frozen=True, kw_only=True)
class Unary:
    """``-x`` or ``not x``."""

    op: Literal["-", "not"]
    operand: Expr


@dataclass(frozen=True, kw_only=True)
class Binary:
    """Arithmetic; ``/`` is a true division."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, kw_only=True)
class Compare:
    """A comparison; bool."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, kw_only=True)
class Logical:
    """``and`` / ``or`` of two conditions; both sides are evaluated."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, kw_only=True)
class Select:
    """``select(condition, then, otherwise)``; both branches count as potential demand."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function of ``FUNCTIONS``."""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, kw_only=True)
class Cast:
    """``cast(value, dtype)``."""

    dtype: DType
    value: Expr


Expr: TypeAlias = Const | Name | Index | Load | Unary | Binary | Compare | Logical | Select | Call | Cast


# --- declarations ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Param:
    """A scalar fixed at compile time, with its default (``eps = 1e-6``)."""

    name: str
    default: float | int


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A named axis running over a dim. Exactly one axis of a program has kind ``row``: its program instances."""

    name: str
    dim: str
    kind: Literal["row", "column"]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An argument. ``dtype`` is its default; ``like`` names the tensor whose dtype it follows instead."""

    name: str
    axes: tuple[str, ...]
    role: Literal["input", "output"]
    dtype: DType | None = "float32"
    like: str | None = None
    aliases: str | None = None
    """An output may declare that it shares its buffer with this input."""


# --- statements ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reducer:
    """Opens a reduction epoch; every partial starts from the op's identity, ``seed`` is combined exactly once."""

    name: str
    op: ReduceOp
    dtype: DType = "float32"
    shape: tuple[str, ...] = ()
    """Axis or dim names of a reducer array; () is one value per row."""
    seed: Expr | None = None
    order: Literal["any", "strict"] = "any"


@dataclass(frozen=True, kw_only=True)
class Update:
    """Each logical iteration over ``over`` contributes ``value`` exactly once (where ``where`` holds)."""

    reducer: str
    over: tuple[str, ...]
    value: Expr
    index: tuple[Expr, ...] = ()
    where: Expr | None = None


@dataclass(frozen=True, kw_only=True)
class Finalize:
    """One collective; ``into`` becomes a readable row scalar."""

    reducer: str
    into: str
    rest: tuple[str, ...] = ()
    """Names of the further components of a structured op, in their order; () for any other op."""

    @property
    def results(self) -> tuple[str, ...]:
        """Every row scalar that becomes readable."""
        return (self.into, *self.rest)


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """Sugar for reducer + update + finalize."""

    into: str
    op: ReduceOp
    over: tuple[str, ...]
    value: Expr
    rest: tuple[str, ...] = ()
    """As in Finalize."""

    @property
    def results(self) -> tuple[str, ...]:
        """Every row scalar that becomes readable."""
        return (self.into, *self.rest)


@dataclass(frozen=True, kw_only=True)
class Let:
    """A row scalar."""

    name: str
    value: Expr


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A distributed tile over column axes: a snapshot of its inputs."""

    name: str
    over: tuple[str, ...]
    value: Expr


@dataclass(frozen=True, kw_only=True)
class Store:
    """Writes an output at its natural subscripts; ``over=()`` writes one value per row."""

    tensor: str
    over: tuple[str, ...]
    value: Expr


@dataclass(frozen=True, kw_only=True)
class StageBoundary:
    """``stage``: an effect boundary; nothing moves across it."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A thread-uniform serial loop; zero trips allowed; updates inside, finalize outside."""

    count: str
    """A dim or an integer param."""
    body: tuple[Statement, ...]
    index: str | None = None
    """Name of the trip's number in the body: an int32 from 0 to count - 1, the same for every lane."""


Statement: TypeAlias = Reducer | Update | Finalize | Reduce | Let | Tile | Store | StageBoundary | Loop


@dataclass(frozen=True, kw_only=True)
class Program:
    """A complete kernel description."""

    name: str
    params: tuple[Param, ...]
    dims: tuple[str, ...]
    axes: tuple[Axis, ...]
    tensors: tuple[Tensor, ...]
    body: tuple[Statement, ...]

    @property
    def row_axis(self) -> Axis:
        """The axis whose points are the program instances."""
        return next(axis for axis in self.axes if axis.kind == "row")

    def axis(self, name: str) -> Axis:
        """The axis of that name (KeyError if none)."""
        return {axis.name: axis for axis in self.axes}[name]

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name (KeyError if none)."""
        return {tensor.name: tensor for tensor in self.tensors}[name]

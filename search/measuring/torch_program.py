"""A program evaluated with torch operations: the baseline of a program that names no torch call. Torch child only.

Every statement becomes one or a few vectorised torch calls over all rows, as somebody would write it in eager mode. A
value has one dimension for the rows and one per column axis, of extent 1 where it does not vary. Elements of 16 bits
are widened when they are read, as the program's meaning has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from search.measuring import torch_structured
from search.program.arrays import array_axes
from search.program.case import Case
from search.program.desugar import desugar
from search.program.dtypes import expression_dtype, program_dtypes
from search.program.ir import (
    STRUCTURED_OPS,
    Affine,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Finalize,
    Index,
    Let,
    Load,
    Logical,
    Loop,
    Name,
    ReduceOp,
    Reducer,
    Select,
    StageBoundary,
    Store,
    Tensor,
    Tile,
    Unary,
    Update,
)
from search.program.walk import natural

Value = Any
"""A torch tensor, or a Python number for params, dims and literals."""
Names = dict[str, Value]
Evaluate = Callable[[Names], Value]


class NotExpressible(Exception):  # noqa: N818 - becomes the baseline's ``error``
    """A construct that this module has no torch operations for."""


_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
}
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "bool": torch.bool,
}
_IDENTITIES: dict[str, dict[ReduceOp, float]] = {
    "float32": {"sum": 0.0, "product": 1.0, "max": -math.inf, "min": math.inf},
    "int32": {"sum": 0, "product": 1, "max": -(2**31), "min": 2**31 - 1, "and": -1, "or": 0, "xor": 0},
}
_COMBINE: dict[ReduceOp, Callable[[Value, Value], Value]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


_SCATTER: dict[ReduceOp, str] = {"sum": "sum", "product": "prod", "max": "amax", "min": "amin"}


class TorchProgram:
    """A case's program as one callable: input tensors by name in, output tensors by name out (always allocated)."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._row = case.program.row_axis.name
        columns = [axis.name for axis in case.program.axes if axis.kind == "column"]
        self._position = {self._row: 0, **{axis: place for place, axis in enumerate(columns, start=1)}}
        self._numbers: Names = {**case.params, **case.dims}
        self._ops: dict[str, tuple[ReduceOp, str]] = {}
        self._arrays: dict[str, tuple[str, ...]] = {}
        program = desugar(case.program)
        self._types = program_dtypes(program, case.dtypes)
        self._steps = [self._step(statement) for statement in program.body]

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """Evaluate once; NotExpressible is raised by the constructor, never here."""
        names: Names = {**self._numbers, **{f"tensor {name}": tensor for name, tensor in inputs.items()}}
        for step in self._steps:
            step(names)
        return {t.name: names[f"tensor {t.name}"] for t in self._case.program.tensors if t.role == "output"}

    # --- statements

    def _step(self, statement: object) -> Callable[[Names], None]:
        match statement:
            case Reducer():
                # A strict fold is summed as torch sums: within the tolerance, as any order is, and not to the bit.
                return self._open(statement)
            case Update():
                structured = self._ops[statement.reducer][0] in STRUCTURED_OPS
                return self._structured(statement) if structured else self._update(statement)
            case Finalize():
                return self._finalize(statement)
            case Loop():
                return self._loop(statement)
            case Let() | Tile():
                return self._assign(statement.name, self._compile(statement.value))
            case Store():
                return self._store(statement)
            case StageBoundary():
                return lambda names: None
            case _:
                raise NotExpressible(f"no torch operations for {type(statement).__name__} here: {statement}")

    def _assign(self, name: str, evaluate: Evaluate) -> Callable[[Names], None]:
        def step(names: Names) -> None:
            names[name] = evaluate(names)

        return step

    def _loop(self, loop: Loop) -> Callable[[Names], None]:
        trips, steps = int(self._numbers[loop.count]), [self._step(statement) for statement in loop.body]

        def step(names: Names) -> None:
            for trip in range(trips):
                if loop.index is not None:
                    names[loop.index] = trip
                for inner in steps:
                    inner(names)

        return step

    def _finalize(self, finalize: Finalize) -> Callable[[Names], None]:
        slot, shape = f"reducer {finalize.reducer}", self._shape(self._arrays[finalize.reducer])
        op, dtype = self._ops[finalize.reducer]
        if op in STRUCTURED_OPS:
            return lambda names: names.update(
                zip(finalize.results, names[slot] or torch_structured.empty(op, shape), strict=True)
            )

        def step(names: Names) -> None:
            held = names[slot]
            nothing = torch.full(shape, _IDENTITIES[dtype][op], dtype=_DTYPES[dtype])
            names[finalize.into] = nothing if held is None else held

        return step

    def _open(self, reducer: Reducer) -> Callable[[Names], None]:
        self._ops[reducer.name] = reducer.op, reducer.dtype
        self._arrays[reducer.name] = array_axes(self._case.program, reducer)
        seed = self._compile(reducer.seed) if reducer.seed is not None else None

        def step(names: Names) -> None:
            names[f"reducer {reducer.name}"] = _tensor(seed(names), reducer.dtype) if seed else None

        return step

    def _update(self, update: Update) -> Callable[[Names], None]:
        (op, dtype), slot = self._ops[update.reducer], f"reducer {update.reducer}"
        value = self._compile(update.value)
        where = self._compile(update.where) if update.where is not None else None
        shape, kept = self._shape(update.over), self._arrays[update.reducer]
        places = tuple(self._position[axis] for axis in update.over if axis not in kept)
        own = update.index == tuple(Index(axis=axis) for axis in kept) and set(kept) <= set(update.over)
        scatter = None if own else self._scatter(update, kept)

        def step(names: Names) -> None:
            contribution = _tensor(value(names), dtype)
            if where is not None:
                contribution = torch.where(_condition(where(names)), contribution, _IDENTITIES[dtype][op])
            contribution = contribution.expand(shape)
            total = _reduce(op, contribution, places) if scatter is None else scatter(names, contribution)
            held = names[slot]
            names[slot] = total if held is None else _COMBINE[op](held, total)

        return step

    def _structured(self, update: Update) -> Callable[[Names], None]:
        """An update of a reducer whose state holds several values."""
        op, slot = self._ops[update.reducer][0], f"reducer {update.reducer}"
        value = self._compile(update.value)
        where = self._compile(update.where) if update.where is not None else None
        shape, places = self._shape(update.over), tuple(self._position[axis] for axis in update.over)

        def step(names: Names) -> None:
            contribution = _tensor(value(names), "float32").expand(shape)
            enabled = None if where is None else _condition(where(names)).expand(shape)
            part = torch_structured.part(op, contribution, enabled, places)
            names[slot] = torch_structured.combined(op, names[slot], part) if names[slot] else part

        return step

    def _scatter(self, update: Update, axes: tuple[str, ...]) -> Callable[[Names, Value], Value]:
        """Contributions to the elements of an array that indices name; what is not enabled comes as the identity."""
        op, dtype = self._ops[update.reducer]
        if op not in _SCATTER:
            raise NotExpressible(f"no torch operation scatters with {op!r}")
        nothing = _IDENTITIES[dtype][op]
        indices = [self._compile(index) for index in update.index]
        extents = [self._case.extent(axis) for axis in axes]
        over, whole = self._shape(update.over), self._shape(axes)
        rows = self._along(self._row, torch.arange(self._case.rows))

        def scatter(names: Names, contribution: Value) -> Value:
            place = rows
            for index, extent in zip(indices, extents, strict=True):
                place = place * extent + torch.as_tensor(index(names)).clamp(0, extent - 1).long()
            total = torch.full((math.prod(whole),), nothing, dtype=_DTYPES[dtype])
            flat = place.expand(over).reshape(-1)
            added = total.scatter_reduce(0, flat, contribution.reshape(-1), reduce=_SCATTER[op])
            ordered = added.view(self._case.rows, *extents)
            # the shape's order of axes, then that of the program's columns
            by_column = sorted(range(len(axes)), key=lambda place: self._position[axes[place]])
            return ordered.permute(0, *(place + 1 for place in by_column)).reshape(whole)

        return scatter

    def _store(self, store: Store) -> Callable[[Names], None]:
        value = self._compile(store.value)
        tensor = self._case.program.tensor(store.tensor)
        dtype, shape = _DTYPES[self._case.dtypes[tensor.name]], self._shape(tensor.axes)
        elsewhere = [place for axis, place in self._position.items() if axis not in tensor.axes]
        ordered = sorted(tensor.axes, key=lambda axis: self._position[axis])
        order = [ordered.index(axis) for axis in tensor.axes]

        def step(names: Names) -> None:
            whole = _tensor(value(names), "float32").expand(shape).squeeze(elsewhere).permute(order)
            names[f"tensor {tensor.name}"] = whole.to(dtype).contiguous()

        return step

    # --- expressions: compiled once into closures, so that no tree is walked while something is timed

    def _compile(self, expr: Expr) -> Evaluate:
        match expr:
            case Const():
                constant = expr.value
                return lambda names: constant
            case Name():
                name = expr.name
                return lambda names: names[name]
            case Index():
                line = self._along(expr.axis, torch.arange(self._case.extent(expr.axis), dtype=torch.int32))
                return lambda names: line
            case Load():
                return self._load(expr)
            case Unary(op="-"):
                operand = self._compile(expr.operand)
                return lambda names: -operand(names)
            case Unary():
                operand = self._compile(expr.operand)
                return lambda names: torch.logical_not(_condition(operand(names)))
            case Binary() | Compare():
                combine, left, right = _BINARY[expr.op], self._compile(expr.left), self._compile(expr.right)
                return lambda names: combine(left(names), right(names))
            case Logical():
                joined = torch.logical_and if expr.op == "and" else torch.logical_or
                left, right = self._compile(expr.left), self._compile(expr.right)
                return lambda names: joined(_condition(left(names)), _condition(right(names)))
            case Select():
                condition = self._compile(expr.condition)
                then, otherwise = self._compile(expr.then), self._compile(expr.otherwise)
                held = expression_dtype(expr, self._types)
                return lambda names: torch.where(
                    _condition(condition(names)), _tensor(then(names), held), _tensor(otherwise(names), held)
                )
            case Call():
                function, args = _FUNCTIONS[expr.function], [self._compile(arg) for arg in expr.args]
                held = expression_dtype(expr, self._types)
                return lambda names: function(*(_tensor(arg(names), held) for arg in args))
            case Cast():
                dtype, value = _DTYPES[expr.dtype], self._compile(expr.value)
                narrow = expr.dtype in ("float16", "bfloat16")
                if narrow:
                    return lambda names: torch.as_tensor(value(names)).to(dtype).float()
                return lambda names: torch.as_tensor(value(names)).to(dtype)

    def _load(self, load: Load) -> Evaluate:
        tensor, slot = self._case.program.tensor(load.tensor), f"tensor {load.tensor}"
        if self._case.dtypes[tensor.name] in ("float16", "bfloat16"):
            read = self._read(load, tensor, slot)
            return lambda names: read(names).float()
        return self._read(load, tensor, slot)

    def _read(self, load: Load, tensor: Tensor, slot: str) -> Evaluate:
        if load.index == tuple(natural(axis) for axis in tensor.axes):
            ordered = sorted(tensor.axes, key=lambda axis: self._position[axis])
            order = [tensor.axes.index(axis) for axis in ordered]
            view = tuple(self._case.extent(axis) if axis in tensor.axes else 1 for axis in self._position)
            if order == sorted(order):
                return lambda names: names[slot].view(view)
            return lambda names: names[slot].permute(order).reshape(view)
        fixed = tuple(self._subscript(index) for index in load.index)
        moving = [[(name, factor) for name, factor in index.terms if self._counts(name)] for index in load.index]
        if not any(moving):
            return lambda names: names[slot][fixed]
        return lambda names: names[slot][
            tuple(
                place + sum(factor * names[name] for name, factor in terms)
                for place, terms in zip(fixed, moving, strict=True)
            )
        ]

    def _counts(self, name: str) -> bool:
        """True for the index of a loop."""
        return name not in self._numbers and name not in self._position

    def _subscript(self, index: Affine) -> Value:
        """The part of a subscript that no loop's index moves."""
        place = self._along(self._row, torch.tensor([index.constant]))
        for name, factor in index.terms:
            if name in self._numbers:
                place = place + factor * int(self._numbers[name])
            elif not self._counts(name):
                place = place + factor * self._along(name, torch.arange(self._case.extent(name)))
        return place

    def _along(self, axis: str, line: Value) -> Value:
        shape = [1] * len(self._position)
        shape[self._position[axis]] = len(line)
        return line.view(shape)

    def _shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Rows by the extents of ``axes``, 1 elsewhere."""
        return tuple(self._case.extent(axis) if axis in axes or axis == self._row else 1 for axis in self._position)


def _tensor(value: Value, dtype: str) -> Value:
    """The value as a tensor; a number in the dtype that stands around it."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=_DTYPES[dtype])


def _condition(value: Value) -> Value:
    return value if isinstance(value, torch.Tensor) else torch.tensor(bool(value))


def _reduce(op: ReduceOp, value: Value, places: tuple[int, ...]) -> Value:
    if not places:
        return value
    if op == "sum":
        return torch.sum(value, places, keepdim=True, dtype=value.dtype)
    if op in ("max", "min"):
        return (torch.amax if op == "max" else torch.amin)(value, places, keepdim=True)
    for place in places:
        value = (
            torch.prod(value, place, keepdim=True, dtype=value.dtype)
            if op == "product"
            else _halved(op, value.movedim(place, -1)).movedim(-1, place)
        )
    return value


def _halved(op: ReduceOp, value: Value) -> Value:
    """A bitwise reduction of the last dimension, which torch has no call for: halves are combined until one is left."""
    while (extent := value.shape[-1]) > 1:
        half = extent // 2
        combined = _COMBINE[op](value[..., :half], value[..., half : 2 * half])
        value = torch.cat([combined, value[..., 2 * half :]], dim=-1) if extent % 2 else combined
    return value

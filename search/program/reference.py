"""The oracle: what a case means, in numpy. With float64 it is the truth, with float32 the plain two-pass evaluation.

Imported by the children that check outputs, never by the service process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from search.program.arrays import array_axes
from search.program.case import Case
from search.program.desugar import desugar
from search.program.direct import State, combined, direct, empty
from search.program.dtypes import declared_dtypes, value_dtype
from search.program.folds import FoldOrder, flat_lines, left_fold, scatter
from search.program.ir import (
    ROUNDED_OPS,
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
    Program,
    Reduce,
    ReduceOp,
    Reducer,
    Select,
    StageBoundary,
    Statement,
    Store,
    Tile,
    Unary,
    Update,
)
from search.program.numpy_ops import ARITHMETIC, COMPARISONS, FUNCTIONS, REDUCTIONS
from search.program.walk import natural, statements

Array = npt.NDArray[Any]

CHUNK_ELEMENTS = 2**21
"""Points of one statement that are evaluated at a time (16 MiB a temporary)."""


def identity(op: ReduceOp, dtype: np.dtype[Any]) -> float | int:
    """What a partial starts from: ``op(identity, x) == x``."""
    floating = np.issubdtype(dtype, np.floating)
    match op:
        case "sum" | "or" | "xor":
            return 0
        case "product":
            return 1
        case "and":
            return -1
        case "max":
            return -math.inf if floating else int(np.iinfo(np.int32).min)
        case "min":
            return math.inf if floating else int(np.iinfo(np.int32).max)
        case _:
            raise ValueError(f"{op} holds several values: see monoids.py")


def evaluate(
    case: Case,
    inputs: Mapping[str, Array],
    *,
    dtype: npt.DTypeLike = np.float64,
    product_order: FoldOrder = "given",
    shuffle: np.random.Generator | None = None,
) -> dict[str, npt.NDArray[np.float64]]:
    """Every output of a case, as float64 (rounding to the output's dtype is the checker's).

    ``inputs``: one array per input, in the case's shapes (ValueError otherwise). ``dtype``: float64, or float32 for the
    plain evaluation in single precision. NaN propagates through max and min; a reduction of nothing is its identity
    (and seed). ``product_order`` sorts the factors of each product by magnitude: its extremes show where the order
    alone decides between zero, infinity and NaN. ``shuffle`` makes sums and products left folds in random order, but
    for strict ones. float16 and bfloat16 inputs come as arrays of any float dtype that
    holds them.
    """
    real = np.dtype(dtype)
    for tensor in case.program.tensors:
        if tensor.role == "input" and np.shape(inputs[tensor.name]) != case.shape(tensor):
            shape = np.shape(inputs[tensor.name])
            raise ValueError(f"input {tensor.name} has shape {shape}, the case says {case.shape(tensor)}")
    plain = desugar(case.program)
    outputs = {
        tensor.name: np.full(case.shape(tensor), np.nan) for tensor in case.program.tensors if tensor.role == "output"
    }
    rows = max(1, CHUNK_ELEMENTS // _points_per_row(case, plain))
    with np.errstate(all="ignore"):
        for start in range(0, case.rows, rows):
            chunk = _Chunk(case, inputs, outputs, real, slice(start, min(start + rows, case.rows)))
            chunk.product_order, chunk.shuffle = product_order, shuffle
            chunk.run(plain.body)
    return outputs


def _points_per_row(case: Case, program: Program) -> int:
    domains = [
        statement.over for _, statement in statements(program.body) if isinstance(statement, Update | Tile | Store)
    ]
    return max((case.domain_extent(over) for over in domains), default=1)


class _Chunk:
    """Some rows of a case. A value has one dimension for the rows and one per column axis, 1 where it does not vary."""

    def __init__(
        self,
        case: Case,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        real: np.dtype[Any],
        rows: slice,
    ) -> None:
        self.case = case
        self.inputs = inputs
        self.outputs = outputs
        self.real = real
        self.rows = rows
        self.row = case.program.row_axis.name
        columns = [axis.name for axis in case.program.axes if axis.kind == "column"]
        self.position = {self.row: 0, **{axis: place for place, axis in enumerate(columns, start=1)}}
        self.rank = len(self.position)
        self.dtypes = declared_dtypes(case.program, case.dtypes)
        self.integers: dict[str, float | int] = {**case.params, **case.dims}
        self.values: dict[str, Array] = {
            name: np.asarray(value, dtype=np.int64 if self.dtypes[name] == "int" else real)
            for name, value in self.integers.items()
        }
        self.trips: dict[str, int] = {}
        self.reducers: dict[str, tuple[Reducer, Array]] = {}
        self.product_order: FoldOrder = "given"
        self.shuffle: np.random.Generator | None = None
        self.states: dict[str, tuple[Reducer, State]] = {}
        """Of structured reducers."""

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Rows by the extents of ``axes``, 1 elsewhere."""
        shape = [1] * self.rank
        shape[0] = self.rows.stop - self.rows.start
        for axis in axes:
            if axis != self.row:
                shape[self.position[axis]] = self.case.extent(axis)
        return tuple(shape)

    def stored(self, value: Array, dtype: str) -> Array:
        """The value as a name of that dtype holds it."""
        return value.astype(np.int32 if dtype == "int32" else self.real, copy=False)

    # --- statements

    def run(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case Reducer() if statement.op in STRUCTURED_OPS:
                    self.states[statement.name] = statement, empty(statement.op, self.shape(()), self.real)
                case Reducer():
                    held = np.dtype(np.int32) if statement.dtype == "int32" else self.real
                    shape = self.shape(array_axes(self.case.program, statement))
                    start = np.full(shape, identity(statement.op, held), dtype=held)
                    self.reducers[statement.name] = (statement, start)
                case Update() if statement.reducer in self.states:
                    self.structured_update(statement)
                case Update():
                    self.update(statement)
                case Finalize() if statement.reducer in self.states:
                    _, state = self.states.pop(statement.reducer)
                    self.values |= zip(statement.results, state, strict=True)
                case Finalize():
                    reducer, total = self.reducers.pop(statement.reducer)
                    if reducer.seed is not None:
                        seed = self.stored(self.value(reducer.seed), reducer.dtype)
                        total = REDUCTIONS[reducer.op](seed, total)
                    self.values[statement.into] = total
                case Let():
                    self.values[statement.name] = self.value(statement.value)
                case Tile():
                    value = self.value(statement.value)
                    integer = value.dtype == np.int64
                    self.values[statement.name] = value.astype(self.real) if integer else value
                case Store():
                    self.store(statement)
                case Loop():
                    for trip in range(int(self.integers[statement.count])):
                        if statement.index is not None:
                            self.trips[statement.index] = trip
                            self.values[statement.index] = np.asarray(trip, dtype=np.int32)
                        self.run(statement.body)
                case StageBoundary() | Reduce():
                    pass

    def update(self, statement: Update) -> None:
        reducer, total = self.reducers[statement.reducer]
        combine = REDUCTIONS[reducer.op]
        if reducer.shape and not self.stays(reducer, statement):
            self.scatter(statement, reducer, total)
            return
        value = np.broadcast_to(self.stored(self.value(statement.value), reducer.dtype), self.shape(statement.over))
        if statement.where is not None:
            value = np.where(self.value(statement.where), value, value.dtype.type(identity(reducer.op, value.dtype)))
        kept = array_axes(self.case.program, reducer)
        places = tuple(self.position[axis] for axis in statement.over if axis not in kept)
        free = reducer.order != "strict"
        order = self.product_order if reducer.op == "product" and free else "given"
        shuffle = self.shuffled(reducer)
        if not free or order != "given" or shuffle is not None:
            total = left_fold(combine, total, value, places, order, shuffle)
        else:
            total = combine(total, combine.reduce(value, axis=places, keepdims=True, dtype=total.dtype))
        self.reducers[statement.reducer] = (reducer, total)

    def structured_update(self, statement: Update) -> None:
        reducer, state = self.states[statement.reducer]
        value = np.broadcast_to(self.stored(self.value(statement.value), "float32"), self.shape(statement.over))
        where = None if statement.where is None else self.value(statement.where)
        places = tuple(self.position[axis] for axis in statement.over)
        strict, shuffle = reducer.order == "strict", self.shuffled(reducer)
        part = direct(reducer.op, value, where, places, fold=strict, shuffle=shuffle)
        self.states[statement.reducer] = reducer, combined(reducer.op, state, part)

    def stays(self, reducer: Reducer, update: Update) -> bool:
        """True when each point contributes to the element at its own coordinates."""
        axes = array_axes(self.case.program, reducer)
        return update.index == tuple(Index(axis=axis) for axis in axes) and set(axes) <= set(update.over)

    def scatter(self, statement: Update, reducer: Reducer, total: Array) -> None:
        """Contributions one by one, each to the element that its index names."""
        shape = self.shape(statement.over)
        places = [np.arange(shape[0]).reshape([-1] + [1] * (self.rank - 1))]
        places += [np.zeros(1, dtype=np.intp)] * (self.rank - 1)
        for axis, index in zip(array_axes(self.case.program, reducer), statement.index, strict=True):
            places[self.position[axis]] = self.value(index)
        value = self.stored(self.value(statement.value), reducer.dtype)
        enabled = np.asarray(True if statement.where is None else self.value(statement.where))
        order = [0, *(self.position[axis] for axis in statement.over)]
        lines = flat_lines([value, enabled, *places], shape, order)
        scatter(REDUCTIONS[reducer.op], total, lines[0], lines[2:], lines[1], self.shuffled(reducer))

    def shuffled(self, reducer: Reducer) -> np.random.Generator | None:
        """What shuffles the contributions to a reducer; None where they stay in order."""
        return self.shuffle if reducer.order == "any" and reducer.op in ROUNDED_OPS else None

    def store(self, statement: Store) -> None:
        tensor = self.case.program.tensor(statement.tensor)
        value = np.broadcast_to(self.value(statement.value), self.shape(tensor.axes))
        elsewhere = tuple(place for axis, place in self.position.items() if axis not in tensor.axes)
        ordered = sorted(tensor.axes, key=lambda axis: self.position[axis])
        value = np.squeeze(value, axis=elsewhere).transpose([ordered.index(axis) for axis in tensor.axes])
        self.outputs[tensor.name][self.row_slice(tensor.axes)] = value

    def row_slice(self, axes: tuple[str, ...]) -> tuple[slice, ...]:
        """These rows of a tensor, all of its columns."""
        return tuple(self.rows if axis == self.row else slice(None) for axis in axes)

    # --- expressions

    def value(self, expr: Expr) -> Array:
        match expr:
            case Const(value=bool()):
                return np.asarray(expr.value)
            case Const(value=int()):
                return np.asarray(expr.value, dtype=np.int64)
            case Const():
                return np.asarray(expr.value, dtype=self.real)
            case Name():
                return self.values[expr.name]
            case Index():
                return self.along(expr.axis, self.coordinates(expr.axis).astype(np.int32))
            case Load():
                return self.load(expr)
            case Unary(op="not"):
                return np.logical_not(self.value(expr.operand))
            case Unary():
                return np.negative(self.value(expr.operand))
            case Binary(op="/"):
                return np.true_divide(self.floating(expr.left), self.floating(expr.right))
            case Binary():
                return np.asarray(ARITHMETIC[expr.op](*self.joined(expr.left, expr.right)))
            case Compare():
                return np.asarray(COMPARISONS[expr.op](*self.joined(expr.left, expr.right)))
            case Logical():
                combine = np.logical_and if expr.op == "and" else np.logical_or
                return np.asarray(combine(self.value(expr.left), self.value(expr.right)))
            case Select():
                condition = self.value(expr.condition)
                return np.where(condition, *self.joined(expr.then, expr.otherwise))
            case Call(function="min" | "max"):
                choose = np.minimum if expr.function == "min" else np.maximum
                return np.asarray(choose(*self.joined(*expr.args)))
            case Call(function="abs"):
                return np.abs(self.value(expr.args[0]))
            case Call():
                return np.asarray(FUNCTIONS[expr.function](self.floating(expr.args[0])))
            case Cast():
                return self.cast(self.value(expr.value), expr.dtype)

    def floating(self, expr: Expr) -> Array:
        return self.value(expr).astype(self.real, copy=False)

    def joined(self, *exprs: Expr) -> list[Array]:
        """The operands in their common dtype: compile-time integers (int64) adapt to the other side."""
        values = [self.value(expr) for expr in exprs]
        dtypes = {value.dtype for value in values}
        if len(dtypes) == 1:
            return values
        common = self.real if self.real in dtypes else np.dtype(np.int32)
        return [value.astype(common) for value in values]

    def cast(self, value: Array, dtype: str) -> Array:
        if dtype == "int32" and value.dtype == self.real:
            # towards zero; NaN and what no int32 holds become the smallest one
            return np.where((value >= -(2.0**31)) & (value < 2.0**31), value, -(2.0**31)).astype(np.int32)
        if dtype == "int32":
            return value.astype(np.int32)
        if dtype == "float16":
            return value.astype(np.float16).astype(self.real)
        if dtype == "bfloat16":
            return _rounded_to_bfloat16(value.astype(np.float32)).astype(self.real)
        return value.astype(self.real)

    def load(self, load: Load) -> Array:
        tensor = self.case.program.tensor(load.tensor)
        held = np.int32 if value_dtype(self.dtypes[tensor.name]) == "int32" else self.real
        values = np.asarray(self.inputs[tensor.name])[self.row_slice(tensor.axes)].astype(held, copy=False)
        if load.index == tuple(natural(axis) for axis in tensor.axes):
            ordered = sorted(tensor.axes, key=lambda axis: self.position[axis])
            view = values.transpose([tensor.axes.index(axis) for axis in ordered])
            return view[tuple(slice(None) if axis in tensor.axes else np.newaxis for axis in self.position)]
        places = [
            self.along(axis, np.arange(len(self.coordinates(axis)))) if axis == self.row else self.subscript(index)
            for axis, index in zip(tensor.axes, load.index, strict=True)
        ]
        return np.asarray(values[tuple(places)])

    def subscript(self, index: Affine) -> Array:
        place = self.along(self.row, np.full(1, index.constant))
        for name, factor in index.terms:
            known = self.integers.get(name, self.trips.get(name))
            if known is not None:
                place = place + factor * int(known)
            else:
                place = place + factor * self.along(name, self.coordinates(name))
        return place

    def coordinates(self, axis: str) -> Array:
        """Where the iteration stands along an axis: these rows, or all columns."""
        return np.arange(self.rows.start, self.rows.stop) if axis == self.row else np.arange(self.case.extent(axis))

    def along(self, axis: str, line: Array) -> Array:
        shape = [1] * self.rank
        shape[self.position[axis]] = len(line)
        return line.reshape(shape)


def _rounded_to_bfloat16(value: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """To the nearest bfloat16, ties to even, as float32; NaN stays NaN."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(value), value, rounded.view(np.float32))

"""A program evaluated with torch operations: the baseline of a program that names no torch call. Torch child only.

Every statement becomes one or a few vectorised torch calls over all rows, as somebody would write it in eager mode. A
value has one dimension for the rows and one per column axis, of extent 1 where it does not vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from search.program.case import Case
from search.program.desugar import desugar
from search.program.ir import (
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
    Name,
    ReduceOp,
    Reducer,
    Select,
    StageBoundary,
    Store,
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
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32}
_IDENTITIES: dict[ReduceOp, float] = {"sum": 0.0, "product": 1.0, "max": -math.inf, "min": math.inf}
_COMBINE: dict[ReduceOp, Callable[[Value, Value], Value]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


class TorchProgram:
    """A case's program as one callable: input tensors by name in, output tensors by name out (always allocated)."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._row = case.program.row_axis.name
        columns = [axis.name for axis in case.program.axes if axis.kind == "column"]
        self._position = {self._row: 0, **{axis: place for place, axis in enumerate(columns, start=1)}}
        self._numbers: Names = {**case.params, **case.dims}
        self._ops: dict[str, ReduceOp] = {}
        self._steps = [self._step(statement) for statement in desugar(case.program).body]

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """Evaluate once; NotExpressible is raised by the constructor, never here."""
        names: Names = {**self._numbers, **{f"tensor {name}": tensor for name, tensor in inputs.items()}}
        for step in self._steps:
            step(names)
        return {t.name: names[f"tensor {t.name}"] for t in self._case.program.tensors if t.role == "output"}

    # --- statements

    def _step(self, statement: object) -> Callable[[Names], None]:
        match statement:
            case Reducer(order="any", shape=()) if statement.op in _COMBINE and statement.dtype == "float32":
                return self._open(statement)
            case Update(index=()):
                return self._update(statement)
            case Finalize():
                return self._assign(statement.into, lambda names: names[f"reducer {statement.reducer}"])
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

    def _open(self, reducer: Reducer) -> Callable[[Names], None]:
        self._ops[reducer.name] = reducer.op
        seed = self._compile(reducer.seed) if reducer.seed is not None else None

        def step(names: Names) -> None:
            names[f"reducer {reducer.name}"] = _tensor(seed(names)) if seed else None

        return step

    def _update(self, update: Update) -> Callable[[Names], None]:
        op, slot = self._ops[update.reducer], f"reducer {update.reducer}"
        value = self._compile(update.value)
        where = self._compile(update.where) if update.where is not None else None
        shape, places = self._shape(update.over), tuple(self._position[axis] for axis in update.over)

        def step(names: Names) -> None:
            contribution = _tensor(value(names))
            if where is not None:
                contribution = torch.where(_condition(where(names)), contribution, _IDENTITIES[op])
            total = _reduce(op, contribution.expand(shape), places)
            held = names[slot]
            names[slot] = total if held is None else _COMBINE[op](held, total)

        return step

    def _store(self, store: Store) -> Callable[[Names], None]:
        value = self._compile(store.value)
        tensor = self._case.program.tensor(store.tensor)
        dtype, shape = _DTYPES[self._case.dtypes[tensor.name]], self._shape(tensor.axes)
        elsewhere = [place for axis, place in self._position.items() if axis not in tensor.axes]
        ordered = sorted(tensor.axes, key=lambda axis: self._position[axis])
        order = [ordered.index(axis) for axis in tensor.axes]

        def step(names: Names) -> None:
            whole = _tensor(value(names)).expand(shape).squeeze(elsewhere).permute(order)
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
                return lambda names: torch.where(
                    _condition(condition(names)), _tensor(then(names)), _tensor(otherwise(names))
                )
            case Call():
                function, args = _FUNCTIONS[expr.function], [self._compile(arg) for arg in expr.args]
                return lambda names: function(*(_tensor(arg(names)) for arg in args))
            case Cast():
                dtype, value = _DTYPES[expr.dtype], self._compile(expr.value)
                return lambda names: torch.as_tensor(value(names)).to(dtype)

    def _load(self, load: Load) -> Evaluate:
        tensor, slot = self._case.program.tensor(load.tensor), f"tensor {load.tensor}"
        if load.index == tuple(natural(axis) for axis in tensor.axes):
            ordered = sorted(tensor.axes, key=lambda axis: self._position[axis])
            order = [tensor.axes.index(axis) for axis in ordered]
            view = tuple(self._case.extent(axis) if axis in tensor.axes else 1 for axis in self._position)
            if order == sorted(order):
                return lambda names: names[slot].view(view)
            return lambda names: names[slot].permute(order).reshape(view)
        places = tuple(self._subscript(index) for index in load.index)
        return lambda names: names[slot][places]

    def _subscript(self, index: Affine) -> Value:
        place = self._along(self._row, torch.tensor([index.constant]))
        for name, factor in index.terms:
            if name in self._numbers:
                place = place + factor * int(self._numbers[name])
            else:
                place = place + factor * self._along(name, torch.arange(self._case.extent(name)))
        return place

    def _along(self, axis: str, line: Value) -> Value:
        shape = [1] * len(self._position)
        shape[self._position[axis]] = len(line)
        return line.view(shape)

    def _shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Rows by the extents of ``axes``, 1 elsewhere."""
        return tuple(self._case.extent(axis) if axis in axes or axis == self._row else 1 for axis in self._position)


def _tensor(value: Value) -> Value:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float32)


def _condition(value: Value) -> Value:
    return value if isinstance(value, torch.Tensor) else torch.tensor(bool(value))


def _reduce(op: ReduceOp, value: Value, places: tuple[int, ...]) -> Value:
    if not places:
        return value
    if op == "product":
        for place in places:
            value = torch.prod(value, place, keepdim=True)
        return value
    reductions: Mapping[ReduceOp, Callable[..., Value]] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
    return reductions[op](value, places, keepdim=True)

"""Reads: whether each name, element and coordinate in an expression is visible where it stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search.program.dtypes import VALUE_DTYPES, declared_dtypes, infer
from search.program.ir import (
    DTYPE_BYTES,
    FUNCTIONS,
    Affine,
    Call,
    Cast,
    Const,
    Index,
    Load,
    Name,
    Program,
    Reducer,
    Tile,
)
from search.program.report import Report, shown_text
from search.program.walk import Placed, defined, natural, statements, walk

Complaint = tuple[object, str, object]
"""Value, message, allowed."""


@dataclass(kw_only=True)
class ReducerState:
    """Active until ``into`` is set, Finalized from then on."""

    statement: Reducer
    pointer: str
    into: str | None = None
    updated: bool = False


class Reads:
    """The names that are readable so far, and which were used; the verifier adds to them as it walks."""

    def __init__(self, program: Program, kinds: dict[str, str], report: Report) -> None:
        self.report = report
        self.kinds = kinds
        self.types = declared_dtypes(program)
        self.axes = {axis.name: axis for axis in program.axes}
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.row = program.row_axis.name
        self.columns = [axis.name for axis in program.axes if axis.kind == "column"]
        self.integers = {*program.dims, *(p.name for p in program.params if type(p.default) is int)}
        self.tiles: dict[str, Tile] = {}
        self.arrays: dict[str, tuple[str, ...]] = {}
        """Finalized reducer arrays and the axes along which they are read."""
        self.counters: set[str] = set()
        """Indices of the loops around the statement."""
        self.scalars: set[str] = set()
        self.reducers: dict[str, ReducerState] = {}
        self.used = {axis.dim for axis in program.axes} | {self.row}
        self.used |= {axis for tensor in program.tensors for axis in tensor.axes}
        self.later: dict[str, str] = {}
        for pointer, statement in statements(program.body):
            for name in defined(statement):
                self.later.setdefault(name, pointer)

    def expression(self, part: Placed) -> str | None:
        """Reports what is wrong with an expression; its dtype (``INT`` included), or None."""
        legal = True
        for node in walk(part.expr):
            problem: Complaint | None = None
            match node:
                case Name():
                    problem = self.name(node.name, part)
                case Load():
                    problem = self.load(node, part)
                case Index(axis=axis):
                    self.used.add(axis)
                    if axis != self.row and axis not in part.over:
                        problem = axis, f"index({axis}) needs a statement over {axis!r}", [self.row, *part.over]
                case Cast(dtype=target) if target not in DTYPE_BYTES:
                    problem = target, "unknown dtype", list(DTYPE_BYTES)
                case Call() if FUNCTIONS.get(node.function) != len(node.args):
                    problem = node.function, "unknown function, or a wrong number of arguments", FUNCTIONS
                case Const(value=float() as value) if math.isnan(value):
                    problem = "nan", "nan is not a constant", "finite numbers and inf"
                case _:
                    pass
            if problem is not None:
                legal = False
                self.report.add(part.pointer, *problem)
        if not legal:
            return None
        complaints: list[str] = []
        dtype = infer(part.expr, self.types, complaints.append)
        for complaint in complaints:
            self.report.add(part.pointer, None, complaint, list(VALUE_DTYPES))
        return None if complaints else dtype

    def name(self, name: str, part: Placed) -> Complaint | None:
        self.used.add(name)
        kind = self.kinds.get(name)
        if kind in ("param", "dim") or name in self.scalars or name in self.counters:
            return None
        if kind == "axis":
            return name, f"{name!r} is an axis; its coordinate is index({name})", None
        if kind == "tensor":
            return name, f"{name!r} is a tensor; read its elements", None
        tile = self.tiles.get(name)
        axes = self.arrays.get(name) if tile is None else tile.over
        if axes is not None:
            missing = [axis for axis in axes if axis not in part.over]
            if missing:
                words = ", ".join(axis if axis.isprintable() else repr(axis) for axis in missing)
                what = "reducer array" if tile is None else "tile"
                message = f"{what} {name!r} runs over {words} and this does not; reduce it first"
                return name, message, list(part.over)
            return None
        declared = [other for other, kind in self.kinds.items() if kind in ("param", "dim", "tensor")]
        readable = sorted({*declared, *self.scalars, *self.tiles, *self.arrays, *self.counters})
        state = self.reducers.get(name)
        if state is not None and state.into is None:
            return name, f"reducer {name!r} is read before its finalize; partials are not readable", readable
        if state is not None:
            return name, f"a reducer is never readable itself; read its result {state.into!r}", [state.into]
        if name in self.later:
            where = self.later[name]
            if part.pointer.startswith(where):
                return name, f"{name!r} is read by its own definition", readable
            return name, f"{name!r} is read before {where} defines it, or outside its loop", readable
        return name, f"unknown name {shown_text(name)!r}", readable

    def load(self, node: Load, part: Placed) -> Complaint | None:
        self.used.add(node.tensor)
        tensor = self.tensors.get(node.tensor)
        if tensor is None:
            return node.tensor, f"{shown_text(node.tensor)!r} is not a tensor", list(self.tensors)
        if tensor.role == "output":
            return node.tensor, f"{node.tensor!r} is an output and cannot be read; keep the value in a tile", None
        if len(node.index) != len(tensor.axes):
            return node.tensor, f"{node.tensor} has axes {', '.join(tensor.axes)}", len(tensor.axes)
        for axis, subscript in zip(tensor.axes, node.index, strict=True):
            problem = self.subscript(node.tensor, axis, subscript, part)
            if problem is not None:
                return problem
        return None

    def subscript(self, tensor: str, axis: str, subscript: Affine, part: Placed) -> Complaint | None:
        names = [name for name, _ in subscript.terms]
        self.used.update(names)
        if axis == self.row:
            if subscript != natural(axis):
                return tensor, f"each program instance reads its own row of {tensor!r} only", axis
            return None
        moving = [name for name in names if name not in self.integers and name not in self.counters]
        for name in moving:
            if name in self.axes and name != self.row and name not in part.over:
                message = f"{tensor!r} is read along {name!r} and this statement does not run over it; reduce it first"
                return tensor, message, list(part.over)
            if name not in self.columns:
                message = (
                    f"a subscript of {tensor!r} uses {shown_text(name)!r}, not a column axis, dim, integer param or "
                    "index of a loop around it"
                )
                return name, message, [*part.over, *sorted(self.integers), *sorted(self.counters)]
        if len(moving) > 1:
            return tensor, f"a subscript of {tensor!r} moves along {' and '.join(moving)}; one axis at most", 1
        return None

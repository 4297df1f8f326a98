"""Ranges of int32 expressions at actual dims: what proves that an index into a reducer array exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search.program.case import Case
from search.program.grammar import INT32_MAX
from search.program.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Index,
    Logical,
    Name,
    Select,
    Unary,
    Update,
)

Range = tuple[int, int]
"""Smallest and largest value, both included."""

ANY: Range = (-INT32_MAX - 1, INT32_MAX)
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """What is known of the integers of a case at one place: params, dims, and the indices of the loops around it."""

    case: Case
    counters: Mapping[str, Range] = field(default_factory=dict)

    def of(self, expr: Expr, where: Expr | None = None) -> Range:
        """The range of an int32 expression, narrowed where ``where`` compares that very expression with something.

        ``ANY`` when nothing is known: data, and arithmetic that may leave int32.
        """
        low, high = self._plain(expr)
        for condition in _conjuncts(where):
            bounds = self._compared(condition, expr)
            low, high = max(low, bounds[0]), min(high, bounds[1])
        return low, high

    def index(self, update: Update, position: int, *, guarded: bool = True) -> Range:
        """The range of one index of an update; without ``guarded`` whatever its condition says."""
        return self.of(update.index[position], update.where if guarded else None)

    def extent(self, entry: str) -> int:
        """The extent of one entry of a reducer's shape, an axis or a dim."""
        return self.case.dims[entry] if entry in self.case.dims else self.case.extent(entry)

    def _plain(self, expr: Expr) -> Range:
        match expr:
            case Const(value=bool()):
                return 0, 1
            case Const(value=int() as value):
                return value, value
            case Name(name=name):
                return self._named(name)
            case Index(axis=axis):
                return 0, self.case.extent(axis) - 1
            case Cast(dtype="int32", value=Compare() | Logical() | Unary(op="not")):
                return 0, 1
            case Unary(op="-"):
                low, high = self._plain(expr.operand)
                return _within(-high, -low)
            case Binary(op="+" | "-" | "*"):
                return _arithmetic(expr.op, self._plain(expr.left), self._plain(expr.right))
            case Select():
                one, other = self._plain(expr.then), self._plain(expr.otherwise)
                return min(one[0], other[0]), max(one[1], other[1])
            case Call(function="min" | "max"):
                choose = min if expr.function == "min" else max
                one, other = (self._plain(arg) for arg in expr.args)
                return choose(one[0], other[0]), choose(one[1], other[1])
            case Call(function="abs"):
                low, high = self._plain(expr.args[0])
                return _within(max(low, -high, 0), max(-low, high))
            case _:
                return ANY

    def _named(self, name: str) -> Range:
        if name in self.counters:
            return self.counters[name]
        known = self.case.dims.get(name, self.case.params.get(name))
        return (known, known) if isinstance(known, int) else ANY

    def _compared(self, condition: Expr, expr: Expr) -> Range:
        """What one condition says of the expression."""
        if not isinstance(condition, Compare) or condition.op not in _TURNED:
            return ANY
        op, other = condition.op, condition.right
        if condition.left != expr:
            if condition.right != expr:
                return ANY
            op, other = _TURNED[op], condition.left
        low, high = self._plain(other)
        return {
            "<": (ANY[0], high - 1),
            "<=": (ANY[0], high),
            ">": (low + 1, ANY[1]),
            ">=": (low, ANY[1]),
            "==": (low, high),
        }[op]


def _conjuncts(where: Expr | None) -> list[Expr]:
    """The conditions that all hold where ``where`` does."""
    found, pending = [], [] if where is None else [where]
    while pending:
        condition = pending.pop()
        if isinstance(condition, Logical) and condition.op == "and":
            pending += [condition.left, condition.right]
        else:
            found.append(condition)
    return found


def _arithmetic(op: str, left: Range, right: Range) -> Range:
    if op == "+":
        return _within(left[0] + right[0], left[1] + right[1])
    if op == "-":
        return _within(left[0] - right[1], left[1] - right[0])
    corners = [one * other for one in left for other in right]
    return _within(min(corners), max(corners))


def _within(low: int, high: int) -> Range:
    return (low, high) if ANY[0] <= low and high <= ANY[1] else ANY

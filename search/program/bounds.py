"""Bounds at actual dims: every element that a case reads exists, and its compile-time integers fit in int32."""

from __future__ import annotations

from collections.abc import Mapping

from search.errors import Problem
from search.program.case import Case
from search.program.format import format_affine, format_expression
from search.program.grammar import INT32_MAX, program_scope
from search.program.ir import (
    Affine,
    Binary,
    Const,
    Expr,
    Load,
    Loop,
    Name,
    Reducer,
    Statement,
    Unary,
    Update,
)
from search.program.ranges import Range, Ranges
from search.program.report import Report
from search.program.walk import KINDS, children, loads, placed, statements


def verify_case(case: Case) -> tuple[Problem, ...]:
    """Out of bounds reads and overflows of a case whose program verifies; pointers go into the program's document.

    Conditions do not help loads: both branches of a select, and values under ``where``, count as read. Indices into
    reducer arrays may be guarded by ``where``: what it rules out is not accumulated.
    """
    report = Report()
    _Bounds(case, report).body(case.program.body, "/body", {})
    return report.problems


class _Bounds:
    def __init__(self, case: Case, report: Report) -> None:
        self.case, self.report = case, report
        self.integers = {name: value for name, value in case.params.items() if type(value) is int} | dict(case.dims)
        self.reducers = {s.name: s for _, s in statements(case.program.body) if isinstance(s, Reducer)}

    def body(self, body: tuple[Statement, ...], pointer: str, counters: Mapping[str, Range]) -> None:
        """``counters``: the range of each loop index around the body."""
        for position, statement in enumerate(body):
            here = f"{pointer}/{position}/{KINDS[type(statement)]}"
            for part in placed(statement, here):
                for load in dict.fromkeys(loads(part.expr)):
                    self.load(load, part.pointer, counters)
                _check_integers(part.expr, part.pointer, self.integers, self.report)
            if isinstance(statement, Update) and statement.index:
                self.index(statement, here, counters)
            if isinstance(statement, Loop):
                self.loop(statement, here, counters)

    def loop(self, loop: Loop, here: str, counters: Mapping[str, Range]) -> None:
        trips = self.integers[loop.count]
        if trips < 0:
            self.report.add(here + "/count", loop.count, f"the loop would run {trips} times", ">= 0")
        if trips > 0:  # what never runs reads nothing
            inner = {} if loop.index is None else {loop.index: (0, trips - 1)}
            self.body(loop.body, here + "/body", {**counters, **inner})

    def load(self, load: Load, pointer: str, counters: Mapping[str, Range]) -> None:
        axes = self.case.program.tensor(load.tensor).axes
        for axis, subscript in zip(axes, load.index, strict=True):
            low, high = self.affine(subscript, counters)
            last = self.case.extent(axis) - 1
            if low < 0 or high > last:
                message = (
                    f"{load.tensor}[{format_affine(subscript)}] covers {low}..{high}, "
                    f"outside axis {axis!r} of {load.tensor} (0..{last})"
                )
                self.report.add(pointer, format_affine(subscript), message, f"0..{last}")

    def affine(self, subscript: Affine, counters: Mapping[str, Range]) -> Range:
        """Smallest and largest value of a subscript over the whole extent of its axis."""
        low = high = subscript.constant
        for name, factor in subscript.terms:
            if name in self.integers:
                ends = [factor * self.integers[name]]
            elif name in counters:
                ends = [factor * end for end in counters[name]]
            else:
                ends = [0, factor * (self.case.extent(name) - 1)]
            low += min(ends)
            high += max(ends)
        return low, high

    def index(self, update: Update, here: str, counters: Mapping[str, Range]) -> None:
        """Indices into a reducer array: proved to exist, or guarded by a condition on the very expression."""
        reducer = self.reducers[update.reducer]
        ranges = Ranges(case=self.case, counters=counters)
        for position, entry in enumerate(reducer.shape):
            low, high = ranges.index(update, position)
            last = ranges.extent(entry) - 1
            if low < 0 or high > last:
                text = format_expression(update.index[position], program_scope(self.case.program))
                message = (
                    f"index {text} covers {low}..{high}, outside {reducer.name!r} along {entry!r} (0..{last}); "
                    f'clamp it with min and max, or guard it: where "{text} >= 0 and {text} <= {last}"'
                )
                self.report.add(f"{here}/index/{position}", text, message, f"0..{last}")


def _check_integers(expr: Expr, pointer: str, integers: Mapping[str, int], report: Report) -> int | None:
    """The value of a compile-time integer, else None. The depth of expressions is bounded by the parser."""
    parts = [_check_integers(part, pointer, integers, report) for part in children(expr)]
    match expr:
        case Const(value=bool()):
            return None
        case Const(value=int() as value):
            return value
        case Name():
            return integers.get(expr.name)
        case Unary(op="-") if parts[0] is not None:
            value = -parts[0]
        case Binary(op="+" | "-" | "*"):
            left, right = parts
            if left is None or right is None:
                return None
            value = left + right if expr.op == "+" else left - right if expr.op == "-" else left * right
        case _:
            return None
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        message = "integers known before the kernel runs are int32, and this one overflows; cast a factor to float32"
        report.add(pointer, value, message, "-2147483648..2147483647")
        return None
    return value

"""Bounds at actual dims: every element that a case reads exists, and its compile-time integers fit in int32."""

from __future__ import annotations

from collections.abc import Mapping

from search.errors import Problem
from search.program.case import Case
from search.program.format import format_affine
from search.program.grammar import INT32_MAX
from search.program.ir import Affine, Binary, Const, Expr, Loop, Name, Unary
from search.program.report import Report
from search.program.walk import children, loads, placed, statements


def verify_case(case: Case) -> tuple[Problem, ...]:
    """Out of bounds reads and overflows of a case whose program verifies; pointers go into the program's document.

    Conditions do not help: both branches of a select, and values under ``where``, count as read.
    """
    report = Report()
    integers = {name: value for name, value in case.params.items() if type(value) is int} | dict(case.dims)
    for pointer, statement in statements(case.program.body):
        if isinstance(statement, Loop) and integers[statement.count] < 0:
            message = f"the loop would run {integers[statement.count]} times"
            report.add(pointer + "/count", statement.count, message, ">= 0")
        for part in placed(statement, pointer):
            seen = set()
            for load in loads(part.expr):
                if load in seen:
                    continue
                seen.add(load)
                axes = case.program.tensor(load.tensor).axes
                for axis, subscript in zip(axes, load.index, strict=True):
                    low, high = affine_range(subscript, case, integers)
                    last = case.extent(axis) - 1
                    if low < 0 or high > last:
                        message = (
                            f"{load.tensor}[{format_affine(subscript)}] covers {low}..{high}, "
                            f"outside axis {axis!r} of {load.tensor} (0..{last})"
                        )
                        report.add(part.pointer, format_affine(subscript), message, f"0..{last}")
            _check_integers(part.expr, part.pointer, integers, report)
    return report.problems


def affine_range(subscript: Affine, case: Case, integers: Mapping[str, int]) -> tuple[int, int]:
    """Smallest and largest value of a subscript over the whole extent of its axis."""
    low = high = subscript.constant
    for name, factor in subscript.terms:
        if name in integers:
            low += factor * integers[name]
            high += factor * integers[name]
        else:
            span = factor * (case.extent(name) - 1)
            low += min(0, span)
            high += max(0, span)
    return low, high


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

"""Expressions to text: the inverse of ``expr.parse_expression``."""

from __future__ import annotations

from search.program.grammar import ADD, ATOM, COMPARE, NOT, PRECEDENCE, UNARY, Scope
from search.program.ir import (
    Affine,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Index,
    Load,
    Logical,
    Name,
    Select,
    Unary,
)
from search.program.walk import natural


def format_expression(expr: Expr, scope: Scope | None = None) -> str:
    """Text that parses to ``expr``; natural subscripts and the row are left out if a scope is given."""
    return _format(expr, scope)[0]


def _format(expr: Expr, scope: Scope | None) -> tuple[str, int]:
    def part(operand: Expr, least: int) -> str:
        text, precedence = _format(operand, scope)
        return text if precedence >= least else f"({text})"

    match expr:
        case Const(value=bool() as value):
            return ("true" if value else "false"), ATOM
        case Const(value=value):
            text = repr(value)
            return text, UNARY if text.startswith("-") else ATOM
        case Name():
            return expr.name, ATOM
        case Index():
            return f"index({expr.axis})", ATOM
        case Load():
            return _format_load(expr, scope), ATOM
        case Unary(op="not"):
            return f"not {part(expr.operand, NOT)}", NOT
        case Unary():
            # a bare literal would swallow the minus
            bare = part(expr.operand, UNARY)
            literal = isinstance(expr.operand, Const) and not bare.startswith("-")
            return (f"-({bare})" if literal else f"-{bare}"), UNARY
        case Binary() | Logical():
            precedence = PRECEDENCE[expr.op]
            return f"{part(expr.left, precedence)} {expr.op} {part(expr.right, precedence + 1)}", precedence
        case Compare():
            return f"{part(expr.left, ADD)} {expr.op} {part(expr.right, ADD)}", COMPARE
        case Select():
            return f"select({part(expr.condition, 0)}, {part(expr.then, 0)}, {part(expr.otherwise, 0)})", ATOM
        case Call():
            return f"{expr.function}({', '.join(part(arg, 0) for arg in expr.args)})", ATOM
        case Cast():
            return f"cast({part(expr.value, 0)}, {expr.dtype})", ATOM


def _format_load(load: Load, scope: Scope | None) -> str:
    axes = scope.tensors.get(load.tensor) if scope else None
    index = list(load.index)
    if scope and axes is not None and len(axes) == len(index):
        if index == [natural(axis) for axis in axes]:
            return load.tensor
        row = scope.row_axis
        if row in axes and index[axes.index(row)] == natural(row):
            del index[axes.index(row)]
    return f"{load.tensor}[{', '.join(format_affine(subscript) for subscript in index)}]"


def format_affine(subscript: Affine) -> str:
    """A subscript as text: ``2*col + half - 1``."""
    text = ""
    for name, factor in subscript.terms:
        sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
        text += sign + (name if abs(factor) == 1 else f"{abs(factor)}*{name}")
    if not text:
        return str(subscript.constant)
    if subscript.constant:
        text += f" {'-' if subscript.constant < 0 else '+'} {abs(subscript.constant)}"
    return text

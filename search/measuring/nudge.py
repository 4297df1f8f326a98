"""A program whose row scalars are off by one ulp of float32: what rounding may do to them. Pure data.

Sums of 16-bit inputs are often exact in float32, whatever their order: then plain evaluations agree with the oracle by
luck, and would refuse every other way to the same mean. And what is rounded to 16 bits inside an expression may lie so
close to a tie that float32 takes the other side. So the yardstick of such programs is also taken with each row scalar
and each value about to be rounded multiplied by 1 ± 2^-23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from search.program.case import Case
from search.program.desugar import desugar
from search.program.dtypes import expression_dtype, program_dtypes
from search.program.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Finalize,
    Let,
    Logical,
    Loop,
    Name,
    Program,
    Reducer,
    Select,
    Statement,
    Store,
    Tile,
    Unary,
    Update,
)
from search.program.walk import placed, statements, walk

NARROW = ("float16", "bfloat16")
FACTORS = (1 + 2.0**-23, 1 - 2.0**-23)


def nudged_programs(case: Case) -> tuple[Program, ...]:
    """The case's program, nudged up and down; () where nothing has 16 bits, or where floats are compared.

    A comparison may jump at the smallest change, and what it chooses between may be anything.
    """
    program = desugar(case.program)
    types = program_dtypes(program, case.dtypes)
    narrow = any(dtype in NARROW for dtype in case.dtypes.values())
    for pointer, statement in statements(program.body):
        for part in placed(statement, pointer):
            for node in walk(part.expr):
                if isinstance(node, Compare) and "float32" in (
                    expression_dtype(node.left, types),
                    expression_dtype(node.right, types),
                ):
                    return ()
                narrow = narrow or (isinstance(node, Cast) and node.dtype in NARROW)
    return tuple(_nudged(program, types, factor) for factor in FACTORS) if narrow else ()


def _nudged(program: Program, types: Mapping[str, str], factor: float) -> Program:
    arrays = {s.name for s in program.body if isinstance(s, Reducer) and s.shape}
    body: list[Statement] = []
    for statement in program.body:
        if isinstance(statement, Finalize) and statement.reducer not in arrays:
            # no program has a name of two words
            exact = {name: f"{name} exact" for name in statement.results if types.get(name) == "float32"}
            into, *rest = (exact.get(name, name) for name in statement.results)
            body.append(replace(statement, into=into, rest=tuple(rest)))
            body += [Let(name=name, value=_times(Name(name=other), factor)) for name, other in exact.items()]
        else:
            body.append(_statement(statement, types, factor))
    return replace(program, body=tuple(body))


def _statement(statement: Statement, types: Mapping[str, str], factor: float) -> Statement:
    match statement:
        case Let() if types.get(statement.name) == "float32":
            return replace(statement, value=_times(_rounding(statement.value, factor), factor))
        case Tile() | Store() | Update():
            return replace(statement, value=_rounding(statement.value, factor))
        case Loop():
            return replace(statement, body=tuple(_statement(inner, types, factor) for inner in statement.body))
        case _:
            return statement


def _times(expr: Expr, factor: float) -> Expr:
    return Binary(op="*", left=expr, right=Const(value=factor))


def _rounding(expr: Expr, factor: float) -> Expr:
    """The expression with whatever it rounds to 16 bits nudged first."""
    match expr:
        case Cast() if expr.dtype in NARROW:
            inner = _rounding(expr.value, factor)
            return replace(expr, value=_times(Cast(dtype="float32", value=inner), factor))
        case Cast():
            return replace(expr, value=_rounding(expr.value, factor))
        case Unary():
            return replace(expr, operand=_rounding(expr.operand, factor))
        case Binary() | Compare() | Logical():
            return replace(expr, left=_rounding(expr.left, factor), right=_rounding(expr.right, factor))
        case Select():
            return Select(
                condition=_rounding(expr.condition, factor),
                then=_rounding(expr.then, factor),
                otherwise=_rounding(expr.otherwise, factor),
            )
        case Call():
            return replace(expr, args=tuple(_rounding(arg, factor) for arg in expr.args))
        case _:
            return expr

"""A program whose row scalars are off by one ulp of float32: what rounding may do to them. Pure data.

Sums of 16-bit inputs are often exact in float32, whatever their order: then plain evaluations agree with the oracle by
luck, and would refuse every other way to the same mean. And what is rounded to 16 bits inside an expression may lie so
close to a tie that float32 takes the other side. So the yardstick of such programs is also taken with each row scalar
and each value about to be rounded multiplied by 1 ± 2^-23.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
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
    Index,
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
FEW_TERMS = 256
"""Of a sum whose orders are stretched."""
_UNIT = 2.0**-24
"""A rounding of float32, relative, at most."""


def nudged_programs(case: Case) -> tuple[Program, ...]:
    """The case's program, nudged up and down; () where nothing has 16 bits, or where floats are compared.

    A comparison may jump at the smallest change, and what it chooses between may be anything.
    """
    program = desugar(case.program)
    types = program_dtypes(program, case.dtypes)
    narrow = any(dtype in NARROW for dtype in case.dtypes.values()) or any(
        isinstance(node, Cast) and node.dtype in NARROW for node in _nodes(program)
    )
    if not narrow or _compares_floats(program, types):
        return ()
    return tuple(_nudged(program, types, factor) for factor in FACTORS)


def stretched_products(case: Case) -> tuple[Program, ...]:
    """The case's program with each float32 product off by an eighth of what its roundings may come to, up and down.

    The n - 1 roundings of a product all reach its result, in whatever order: |error| ≤ n·u·|product|, u = 2^-24 (N. J.
    Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1). Among equal factors they are equal too where
    lanes or halves multiply alike, and add up to that order; left folds, whose roundings differ from step to step, stay
    within some sqrt(n)·u, so that no choice of them says how far a product may stray. The tolerance takes an error
    eight times, hence the eighth. () where floats are compared, or nothing is multiplied up in an order of one's own.
    """
    program = desugar(case.program)
    factors = _free(program, "product", case)
    if not factors or _compares_floats(program, program_dtypes(program, case.dtypes)):
        return ()

    def stretched(sign: float) -> Program:
        body = [
            replace(s, seed=_times(s.seed or Const(value=1.0), 1 + sign * factors[s.name] * _UNIT / 8))
            if isinstance(s, Reducer) and s.name in factors
            else s
            for s in program.body
        ]
        return replace(program, body=tuple(body))

    return stretched(1.0), stretched(-1.0)


def stretched_sums(case: Case) -> tuple[Program, ...]:
    """The case's program with each short float32 sum off by an eighth of sqrt(n)·u·|sum|, up and down; for float64.

    A few large terms of one sign are rounded to a grid as wide as the error: an order lands on a point of it, and all
    of a handful of orders may land on the one that happens to lie next to the true sum, while another, as good, lands
    on its neighbour. sqrt(n)·u is what n roundings come to with near certainty (N. J. Higham and T. Mary, A new
    approach to probabilistic rounding error analysis, 2019). Sums of many terms, or of both signs, stray enough.
    """
    program = desugar(case.program)
    terms = {name: n for name, n in _free(program, "sum", case).items() if n <= FEW_TERMS}
    if not terms or _compares_floats(program, program_dtypes(program, case.dtypes)):
        return ()

    def stretched(statement: Statement, sign: float) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, body=tuple(stretched(inner, sign) for inner in statement.body))
        if isinstance(statement, Update) and statement.reducer in terms:
            factor = 1 + sign * math.sqrt(terms[statement.reducer]) * _UNIT / 8
            return replace(statement, value=_times(statement.value, factor))
        return statement

    return tuple(replace(program, body=tuple(stretched(s, sign) for s in program.body)) for sign in (1.0, -1.0))


def _free(program: Program, op: str, case: Case) -> dict[str, int]:
    """Reducers of float32 with this op whose order is the candidate's, with the contributions to one element."""
    return {
        statement.name: _contributions(program.body, statement, case)
        for statement in program.body
        if isinstance(statement, Reducer) and (statement.op, statement.dtype, statement.order) == (op, "float32", "any")
    }


def _contributions(body: Iterable[Statement], reducer: Reducer, case: Case, times: int = 1) -> int:
    """Contributions to one element of a reducer, at most."""
    count = 0
    for statement in body:
        if isinstance(statement, Loop):
            trips = case.dims[statement.count] if statement.count in case.dims else int(case.params[statement.count])
            count += _contributions(statement.body, reducer, case, times * trips)
        elif isinstance(statement, Update) and statement.reducer == reducer.name:
            placed_by = {index.axis for index in statement.index if isinstance(index, Index)}
            count += times * math.prod(case.extent(axis) for axis in statement.over if axis not in placed_by)
    return count


def _nodes(program: Program) -> Iterator[Expr]:
    for pointer, statement in statements(program.body):
        for part in placed(statement, pointer):
            yield from walk(part.expr)


def _compares_floats(program: Program, types: Mapping[str, str]) -> bool:
    return any(
        isinstance(node, Compare)
        and "float32" in (expression_dtype(node.left, types), expression_dtype(node.right, types))
        for node in _nodes(program)
    )


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

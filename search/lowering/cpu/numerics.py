"""What the numbers of a lowered kernel may do, by name. Recorded with every artifact; nothing changes it silently."""

from __future__ import annotations

from collections.abc import Iterator

from search.planning.schedule import Collective, DistributedLoop, Schedule, Step
from search.program.ir import Binary, Call, Cast, Compare, Expr, Logical, Select, Unary

_FUNCTIONS = {
    "exp": "degree-6 polynomial (Cephes), about 1 ulp, zero below -87.33",
    "log": "degree-8 polynomial (Cephes), about 1 ulp",
    "sqrt": "correctly rounded",
    "rsqrt": "1 / sqrt, both correctly rounded",
    "tanh": "odd polynomial below 0.625, else 1 - 2 / (exp(2|x|) + 1)",
    "sigmoid": "1 / (1 + exp(-x))",
    "erf": "two polynomials (Juffa), about 1 ulp",
    "min": "NaN propagates",
    "max": "NaN propagates",
}


def describe_numerics(schedule: Schedule) -> dict[str, str]:
    """Name → what is done, for the functions, divisions and reductions that a schedule really has."""
    candidate = schedule.candidate
    out = {"accumulation": "float32", "contraction": "fma allowed within a statement", "denormals": "kept unless named"}
    for step in schedule.steps:
        if isinstance(step, Collective):
            lanes, partials = schedule.lanes_per_row, candidate.partials
            out[f"{step.op} reduction"] = f"{lanes} lanes x {partials} partials, then a binary tree"
        for expr in _expressions(step):
            if isinstance(expr, Call) and expr.function in _FUNCTIONS:
                out[expr.function] = _FUNCTIONS[expr.function]
            if isinstance(expr, Binary) and expr.op == "/":
                out["division"] = "as written, correctly rounded"
    return dict(sorted(out.items()))


def _expressions(step: Step) -> Iterator[Expr]:
    """Every expression node of a step."""
    parts = step.ops if isinstance(step, DistributedLoop) else (step,)
    for part in parts:
        for field in ("value", "where", "seed"):
            expr = getattr(part, field, None)
            if expr is not None:
                yield from _nodes(expr)


def _nodes(expr: Expr) -> Iterator[Expr]:
    yield expr
    match expr:
        case Unary():
            yield from _nodes(expr.operand)
        case Binary() | Compare() | Logical():
            yield from _nodes(expr.left)
            yield from _nodes(expr.right)
        case Select():
            yield from _nodes(expr.condition)
            yield from _nodes(expr.then)
            yield from _nodes(expr.otherwise)
        case Call():
            for argument in expr.args:
                yield from _nodes(argument)
        case Cast():
            yield from _nodes(expr.value)
        case _:
            pass

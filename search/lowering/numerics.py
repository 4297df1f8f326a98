"""What the numbers of a lowered kernel may do, by name, for any target. Nothing changes it silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from search.planning.schedule import ArrayIndex, Collective, DistributedLoop, Schedule, Step, flat_steps
from search.program.algorithms import AlgorithmWord
from search.program.ir import Binary, Call, Expr
from search.program.monoids import MONOIDS
from search.program.walk import walk

_ALGORITHMS: dict[AlgorithmWord, str] = {
    "written": "as written",
    "online": "online softmax: maximum and sum of exponentials in one pass, rescaled where the maximum grows",
    "welford": "Welford: mean and squared deviations in one pass",
}


def describe(
    schedule: Schedule,
    *,
    functions: Mapping[str, str],
    reduction: str,
    denormals: str,
    strict: str,
    uncontracted: str,
) -> dict[str, str]:
    """Name → what is done, for the functions, divisions and reductions that a schedule really has.

    ``functions``: what each is on the target; ``reduction`` and ``strict``: how an unordered and a strict reduction go;
    ``uncontracted``: what a kernel with a strict fold does instead of fma.
    """
    out = {
        "algorithm": _ALGORITHMS[schedule.candidate.algorithm],
        "accumulation": "float32",
        "contraction": uncontracted if any(state.strict for state in schedule.reducers) else "fma allowed",
        "denormals": denormals,
    }
    for dtype in sorted(set(schedule.case.dtypes.values()) & {"float16", "bfloat16"}):
        out[dtype] = "widened exactly, computed in float32, rounded to nearest even where it is stored"
    if "int32" in schedule.case.dtypes.values() or any(state.dtype == "int32" for state in schedule.reducers):
        out["int32"] = "wraps"
    for step, _ in flat_steps(schedule.steps):
        if isinstance(step, Collective) and step.strict:
            out[f"strict {step.op} reduction"] = strict
        elif isinstance(step, Collective):
            out[f"{step.op} reduction"] = reduction
        for root in (*_expressions(step), *_monoid_expressions(step)):
            for node in walk(root):
                if isinstance(node, Call) and node.function in functions:
                    out[node.function] = functions[node.function]
                if isinstance(node, Binary) and node.op == "/":
                    out["division"] = "as written, correctly rounded"
    return dict(sorted(out.items()))


def _monoid_expressions(step: Step) -> Iterator[Expr]:
    """What a structured reduction computes on the way."""
    monoid = MONOIDS.get(step.op) if isinstance(step, Collective) else None
    if monoid is not None:
        yield from (expr for _, expr in (*monoid.absorb, *monoid.combine))


def _expressions(step: Step) -> Iterator[Expr]:
    """The expressions of a step and of its ops."""
    for part in step.ops if isinstance(step, DistributedLoop) else (step,):
        for field in ("value", "where", "seed"):
            expr = getattr(part, field, None)
            if expr is not None:
                yield expr
        for index in getattr(part, "index", ()):
            if isinstance(index, ArrayIndex):
                yield index.value

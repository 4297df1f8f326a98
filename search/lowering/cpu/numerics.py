"""What the numbers of a CPU kernel may do, by name. Recorded with every artifact; nothing changes it silently."""

from __future__ import annotations

from search.lowering.numerics import describe
from search.planning.schedule import Schedule

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
    lanes, partials = schedule.lanes_per_row, schedule.candidate.partials
    return describe(
        schedule,
        functions=_FUNCTIONS,
        reduction=f"{lanes} lanes x {partials} partials, then a binary tree",
        denormals="kept unless a function says otherwise",
        strict="left fold in index order",
        uncontracted="no fma: a strict fold rounds every operation",
    )

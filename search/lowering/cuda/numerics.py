"""What the numbers of a CUDA kernel may do, by name. Recorded with every artifact; nothing changes it silently."""

from __future__ import annotations

from search.lowering.numerics import describe
from search.planning.schedule import Schedule

_FUNCTIONS = {
    "exp": "CUDA's expf, within 1 ulp",
    "log": "CUDA's logf, within 1 ulp",
    "sqrt": "correctly rounded",
    "rsqrt": "CUDA's rsqrtf, within 2 ulp",
    "tanh": "CUDA's tanhf, within 2 ulp",
    "sigmoid": "1 / (1 + exp(-x)) with CUDA's expf",
    "erf": "CUDA's erff, within 2 ulp",
    "min": "NaN propagates",
    "max": "NaN propagates",
}


def describe_numerics(schedule: Schedule) -> dict[str, str]:
    """Name → what is done, for the functions, divisions and reductions that a schedule really has."""
    lanes, partials = schedule.lanes_per_row, schedule.candidate.partials
    across = "a butterfly over the lanes" if lanes > 1 else "nothing to combine across lanes"
    return describe(
        schedule,
        functions=_FUNCTIONS,
        reduction=f"{lanes} lanes x {partials} partials, a binary tree over the partials, {across}",
        denormals="kept",
        strict="left fold in index order, by every lane of the row",
        uncontracted="no fma of products in a kernel with a strict fold",
    )

"""The bitwise or of each row's integers."""

from __future__ import annotations

from search.program.library.kernel import define

KERNEL = define(
    {
        "name": "row_bitwise_or",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "int32"},
            "y": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reducer": {"name": "bits", "op": "or", "dtype": "int32"}},
            {"update": {"reducer": "bits", "over": ["col"], "value": "x"}},
            {"finalize": {"reducer": "bits", "into": "combined"}},
            {"store": {"tensor": "y", "over": [], "value": "combined"}},
        ],
    },
    summary="y = bitwise or over x, one int32 per row; torch has no such reduction, so it is done in halves.",
    tags=("reduction",),
)

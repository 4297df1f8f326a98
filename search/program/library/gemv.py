"""A matrix times a vector: every row's dot product with the one vector that all rows share."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "gemv",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "a": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "x": {"axes": ["col"], "role": "input", "like": "a"},
            "y": {"axes": ["row"], "role": "output", "like": "a"},
        },
        "body": [
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "a * x"}},
            {"store": {"tensor": "y", "over": [], "value": "total"}},
        ],
    },
    summary="y[row] = sum over col of a[row, col] * x[col].",
    baseline=(TorchCall(function="torch.mv", keywords={"input": "$a", "vec": "$x"}, into="y", out="out"),),
    tags=("linear", "reduction"),
)

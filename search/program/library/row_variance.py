"""The variance of each row, around its mean (two passes), divided by the number of columns."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "row_variance",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
            {"let": {"name": "mean", "value": "total / cols"}},
            {"reduce": {"into": "squares", "op": "sum", "over": ["col"], "value": "(x - mean) * (x - mean)"}},
            {"store": {"tensor": "y", "over": [], "value": "squares / cols"}},
        ],
    },
    summary="y = mean((x - mean(x)) * (x - mean(x))), one value per row.",
    baseline=(
        TorchCall(function="torch.var", keywords={"input": "$x", "dim": 1, "correction": 0}, into="y", out="out"),
    ),
    tags=("reduction",),
)

"""Layer normalization with a weight and a bias per column; the variance is taken around the mean (two passes)."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "layer_norm",
        "params": {"eps": 1e-5},
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "weight": {"axes": ["col"], "role": "input", "like": "x"},
            "bias": {"axes": ["col"], "role": "input", "like": "x"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
            {"let": {"name": "mean", "value": "total / cols"}},
            {"tile": {"name": "centered", "over": ["col"], "value": "x - mean"}},
            {"reduce": {"into": "squares", "op": "sum", "over": ["col"], "value": "centered * centered"}},
            {"let": {"name": "rstd", "value": "1 / sqrt(squares / cols + eps)"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "centered * rstd * weight + bias"}},
        ],
    },
    summary="y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row.",
    baseline=(
        TorchCall(
            function="torch.nn.functional.layer_norm",
            keywords={
                "input": "$x",
                "normalized_shape": ["$cols"],
                "weight": "$weight",
                "bias": "$bias",
                "eps": "$eps",
            },
            into="y",
        ),
    ),
    tags=("normalization",),
)

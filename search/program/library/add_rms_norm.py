"""Residual addition and root mean square normalization of the sum; both are outputs."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "add_rms_norm",
        "params": {"eps": 1e-6},
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "residual": {"axes": ["row", "col"], "role": "input", "like": "x"},
            "weight": {"axes": ["col"], "role": "input", "like": "x"},
            "h": {"axes": ["row", "col"], "role": "output", "like": "x"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"tile": {"name": "added", "over": ["col"], "value": "x + residual"}},
            {"store": {"tensor": "h", "over": ["col"], "value": "added"}},
            {"reduce": {"into": "squares", "op": "sum", "over": ["col"], "value": "added * added"}},
            {"let": {"name": "rstd", "value": "1 / sqrt(squares / cols + eps)"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "added * rstd * weight"}},
        ],
    },
    summary="h = x + residual; y = h / sqrt(mean(h * h) + eps) * weight, row by row.",
    baseline=(
        TorchCall(function="torch.add", keywords={"input": "$x", "other": "$residual"}, into="h", out="out"),
        TorchCall(
            function="torch.nn.functional.rms_norm",
            keywords={"input": "$h", "normalized_shape": ["$cols"], "weight": "$weight", "eps": "$eps"},
            into="y",
        ),
    ),
    tags=("normalization",),
)

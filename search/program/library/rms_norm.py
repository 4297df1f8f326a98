"""Root mean square normalization with a weight per column."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "rms_norm",
        "params": {"eps": 1e-6},
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "weight": {"axes": ["col"], "role": "input", "like": "x"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "squares", "op": "sum", "over": ["col"], "value": "x * x"}},
            {"let": {"name": "rstd", "value": "1 / sqrt(squares / cols + eps)"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x * rstd * weight"}},
        ],
    },
    summary="y = x / sqrt(mean(x * x) + eps) * weight, row by row.",
    baseline=(
        TorchCall(
            function="torch.nn.functional.rms_norm",
            keywords={"input": "$x", "normalized_shape": ["$cols"], "weight": "$weight", "eps": "$eps"},
            into="y",
        ),
    ),
    tags=("normalization",),
)

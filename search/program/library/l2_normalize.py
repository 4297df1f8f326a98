"""Each row divided by its Euclidean norm, or by eps where that is larger."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "l2_normalize",
        "params": {"eps": 1e-12},
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "squares", "op": "sum", "over": ["col"], "value": "x * x"}},
            {"let": {"name": "inv", "value": "1 / max(sqrt(squares), eps)"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x * inv"}},
        ],
    },
    summary="y = x / max(sqrt(sum(x * x)), eps), row by row.",
    baseline=(
        TorchCall(
            function="torch.nn.functional.normalize",
            keywords={"input": "$x", "dim": 1, "eps": "$eps"},
            into="y",
            out="out",
        ),
    ),
    tags=("normalization",),
)

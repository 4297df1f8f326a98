"""The smallest element of each row; NaN if there is one."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "row_min",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "least", "op": "min", "over": ["col"], "value": "x"}},
            {"store": {"tensor": "y", "over": [], "value": "least"}},
        ],
    },
    summary="y = min(x), one value per row; NaN propagates.",
    baseline=(TorchCall(function="torch.amin", keywords={"input": "$x", "dim": 1}, into="y", out="out"),),
    tags=("reduction",),
)

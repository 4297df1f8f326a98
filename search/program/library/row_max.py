"""The largest element of each row; NaN if there is one."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "row_max",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x"}},
            {"store": {"tensor": "y", "over": [], "value": "peak"}},
        ],
    },
    summary="y = max(x), one value per row; NaN propagates.",
    baseline=(TorchCall(function="torch.amax", keywords={"input": "$x", "dim": 1}, into="y", out="out"),),
    tags=("reduction",),
)

"""The product of each row."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "row_product",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "total", "op": "product", "over": ["col"], "value": "x"}},
            {"store": {"tensor": "y", "over": [], "value": "total"}},
        ],
    },
    summary="y = product(x), one value per row.",
    baseline=(TorchCall(function="torch.prod", keywords={"input": "$x", "dim": 1}, into="y", out="out"),),
    tags=("reduction",),
)

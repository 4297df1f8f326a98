"""The logarithm of softmax over the columns; maximum and logarithm are taken off one after the other."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "log_softmax",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x"}},
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "exp(x - peak)"}},
            {"let": {"name": "log_total", "value": "log(total)"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x - peak - log_total"}},
        ],
    },
    summary="y = x - max(x) - log(sum(exp(x - max(x)))), row by row.",
    baseline=(TorchCall(function="torch.log_softmax", keywords={"input": "$x", "dim": -1}, into="y", out="out"),),
    tags=("normalization",),
)

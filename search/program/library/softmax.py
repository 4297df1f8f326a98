"""Softmax over the columns, with the row's maximum taken off first."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "softmax",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x"}},
            {"tile": {"name": "e", "over": ["col"], "value": "exp(x - peak)"}},
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "e"}},
            {"let": {"name": "inv", "value": "1 / total"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "e * inv"}},
        ],
    },
    summary="y = exp(x - max(x)) / sum(exp(x - max(x))), row by row.",
    baseline=(TorchCall(function="torch.softmax", keywords={"input": "$x", "dim": -1}, into="y", out="out"),),
    tags=("normalization", "attention"),
)

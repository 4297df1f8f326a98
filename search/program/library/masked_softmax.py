"""Softmax over the columns of scores with an additive mask (0 where visible, -inf where hidden)."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "masked_softmax",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "mask": {"axes": ["row", "col"], "role": "input", "like": "x"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x + mask"}},
            {"tile": {"name": "e", "over": ["col"], "value": "exp(x + mask - peak)"}},
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "e"}},
            {"let": {"name": "inv", "value": "1 / total"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "e * inv"}},
        ],
    },
    summary="y = softmax(x + mask), row by row; a row that is hidden altogether is NaN.",
    baseline=(
        TorchCall(function="torch.add", keywords={"input": "$x", "other": "$mask"}, into="scores"),
        TorchCall(function="torch.softmax", keywords={"input": "$scores", "dim": -1}, into="y", out="out"),
    ),
    tags=("normalization", "attention"),
)

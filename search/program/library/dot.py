"""The dot product of each row of one matrix with the same row of another."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "dot",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "a": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "b": {"axes": ["row", "col"], "role": "input", "like": "a"},
            "y": {"axes": ["row"], "role": "output", "like": "a"},
        },
        "body": [
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "a * b"}},
            {"store": {"tensor": "y", "over": [], "value": "total"}},
        ],
    },
    summary="y = sum(a * b), one value per row.",
    baseline=(
        TorchCall(function="torch.linalg.vecdot", keywords={"x": "$a", "y": "$b", "dim": 1}, into="y", out="out"),
    ),
    tags=("linear", "reduction"),
)

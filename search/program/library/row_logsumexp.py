"""log(sum(exp(x))) of each row, with the row's maximum taken off first; an infinite maximum is not taken off."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "row_logsumexp",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x"}},
            {"let": {"name": "shift", "value": "select(abs(peak) == inf, 0.0, peak)"}},
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "exp(x - shift)"}},
            {"store": {"tensor": "y", "over": [], "value": "shift + log(total)"}},
        ],
    },
    summary="y = log(sum(exp(x))), one value per row.",
    baseline=(TorchCall(function="torch.logsumexp", keywords={"input": "$x", "dim": 1}, into="y", out="out"),),
    tags=("reduction",),
)

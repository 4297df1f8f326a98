"""Cross entropy of each row's scores against its label, with the row's maximum taken off first."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "cross_entropy",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "label": {"axes": ["row"], "role": "input", "dtype": "int32"},
            "loss": {"axes": ["row"], "role": "output", "like": "x"},
        },
        "body": [
            {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x"}},
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "exp(x - peak)"}},
            {
                "reduce": {
                    "into": "picked",
                    "op": "sum",
                    "over": ["col"],
                    "value": "select(index(col) == label, x, 0.0)",
                }
            },
            {
                "store": {
                    "tensor": "loss",
                    "over": [],
                    "value": "select(label >= 0 and label < cols, log(total) - (picked - peak), 0.0)",
                }
            },
        ],
    },
    summary="loss = log(sum(exp(x))) - x[label], one value per row; 0 for a label outside 0…cols - 1.",
    baseline=(
        # torch takes int64 labels, and ignores those that are -100; others outside are an error.
        TorchCall(function="torch.ge", keywords={"input": "$label", "other": 0}, into="not_below", untimed=True),
        TorchCall(function="torch.lt", keywords={"input": "$label", "other": "$cols"}, into="not_above", untimed=True),
        TorchCall(
            function="torch.logical_and",
            keywords={"input": "$not_below", "other": "$not_above"},
            into="inside",
            untimed=True,
        ),
        TorchCall(
            function="torch.where",
            keywords={"condition": "$inside", "input": "$label", "other": -100},
            into="ignoring",
            untimed=True,
        ),
        TorchCall(function="torch.Tensor.long", arguments=("$ignoring",), into="target", untimed=True),
        TorchCall(
            function="torch.nn.functional.cross_entropy",
            keywords={"input": "$x", "target": "$target", "reduction": "none"},
            into="loss",
        ),
    ),
    tags=("loss",),
)

"""GELU by its tanh approximation, added to a residual."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "gelu_tanh_residual",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "residual": {"axes": ["row", "col"], "role": "input", "like": "x"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [
            {
                "store": {
                    "tensor": "y",
                    "over": ["col"],
                    "value": "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) + residual",
                }
            },
        ],
    },
    summary="y = gelu(x) + residual, element by element, with the tanh approximation.",
    baseline=(
        TorchCall(
            function="torch.nn.functional.gelu", keywords={"input": "$x", "approximate": "tanh"}, into="activated"
        ),
        TorchCall(function="torch.add", keywords={"input": "$activated", "other": "$residual"}, into="y", out="out"),
    ),
    tags=("activation",),
)

"""SwiGLU: the gate through SiLU, times the other half of the projection."""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "swiglu",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "gate": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "up": {"axes": ["row", "col"], "role": "input", "like": "gate"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "gate"},
        },
        "body": [
            {"store": {"tensor": "y", "over": ["col"], "value": "gate / (1 + exp(-gate)) * up"}},
        ],
    },
    summary="y = silu(gate) * up, element by element.",
    baseline=(
        TorchCall(function="torch.nn.functional.silu", keywords={"input": "$gate"}, into="gated"),
        TorchCall(function="torch.mul", keywords={"input": "$gated", "other": "$up"}, into="y", out="out"),
    ),
    tags=("activation",),
)

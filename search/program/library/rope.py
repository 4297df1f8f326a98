"""Rotary position embedding of a head whose two halves are rotated against each other (the GPT-NeoX layout).

A row of 2 * half elements in memory is read as parts x half; that there are two parts is proved by the subscript
``1 - part``, which stays inside the axis for no other number.
"""

from __future__ import annotations

from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

KERNEL = define(
    {
        "name": "rope",
        "dims": ["rows", "parts", "half"],
        "axes": {
            "row": {"dim": "rows", "kind": "row"},
            "part": {"dim": "parts", "kind": "column"},
            "lane": {"dim": "half", "kind": "column"},
        },
        "tensors": {
            "x": {"axes": ["row", "part", "lane"], "role": "input", "dtype": "float32"},
            "cosine": {"axes": ["row", "lane"], "role": "input", "like": "x"},
            "sine": {"axes": ["row", "lane"], "role": "input", "like": "x"},
            "y": {"axes": ["row", "part", "lane"], "role": "output", "like": "x"},
        },
        "body": [
            {
                "store": {
                    "tensor": "y",
                    "over": ["part", "lane"],
                    "value": "x * cosine + select(index(part) == 0, -x[1 - part, lane], x[1 - part, lane]) * sine",
                }
            },
        ],
    },
    summary="y = x * cos + rotate_half(x) * sin, row by row; parts is 2.",
    baseline=(
        TorchCall(function="torch.select", keywords={"input": "$x", "dim": 1, "index": 0}, into="first"),
        TorchCall(function="torch.select", keywords={"input": "$x", "dim": 1, "index": 1}, into="second"),
        TorchCall(function="torch.mul", keywords={"input": "$first", "other": "$cosine"}, into="first_cosine"),
        TorchCall(function="torch.mul", keywords={"input": "$second", "other": "$sine"}, into="second_sine"),
        TorchCall(function="torch.sub", keywords={"input": "$first_cosine", "other": "$second_sine"}, into="left"),
        TorchCall(function="torch.mul", keywords={"input": "$second", "other": "$cosine"}, into="second_cosine"),
        TorchCall(function="torch.mul", keywords={"input": "$first", "other": "$sine"}, into="first_sine"),
        TorchCall(function="torch.add", keywords={"input": "$second_cosine", "other": "$first_sine"}, into="right"),
        TorchCall(function="torch.stack", keywords={"tensors": ["$left", "$right"], "dim": 1}, into="y", out="out"),
    ),
    tags=("attention",),
)

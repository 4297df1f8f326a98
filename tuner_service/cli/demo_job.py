"""The demo's job: three kernels at four shapes over one joint space. Data; ``bench/cpu_winners.py`` uses it too."""

from __future__ import annotations

from typing import Any

KERNELS = ("softmax", "rms_norm", "layer_norm")
SHAPES = ((64, 256), (23, 769), (128, 8193), (1024, 4096))
SMALL_SHAPES = ((8, 33),)
"""For a quick look and for tests."""
SPACE: dict[str, list[Any]] = {
    "width": [16, 32, 64],
    "input": ["reload", "cache"],
    "materialize": ["output", "private"],
    "simd_scope": ["none", "all"],
    "nontemporal": [False, True],
}
"""48 candidates a case with a tile (softmax, layer_norm), 24 without one (rms_norm: ``materialize`` is inert)."""
SMALL_SPACE: dict[str, list[Any]] = {
    "width": [8, 32],
    "input": ["reload", "cache"],
    "materialize": ["output"],
    "simd_scope": ["none"],
    "nontemporal": [False],
}
ACCEPTED_CASES = 3
"""So many winners, one a kernel, go through the acceptance: a replay takes about half a minute a case."""
SMALL_ACCEPTED_CASES = 1
LABEL = ("made_by", "tuner demo")
MISSING_ROWS = 7
"""A number of rows that no demo case has: the deliberate miss."""


def demo_request(*, small: bool = False) -> dict[str, Any]:
    """The body of the demo's one ``POST /v1/jobs``."""
    shapes = SMALL_SHAPES if small else SHAPES
    return {
        "cases": [
            {"kernel": kernel, "dims": {"rows": rows, "cols": cols}} for kernel in KERNELS for rows, cols in shapes
        ],
        "device": "cpu",
        "space": SMALL_SPACE if small else SPACE,
        "baselines": ["torch_eager"],
        "labels": {LABEL[0]: LABEL[1]},
    }

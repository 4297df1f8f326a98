"""The TileLang text of a few CUDA candidates, whole. To accept a change: ``UPDATE_GOLDEN=1 pytest tests/golden``."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from search.lowering.cuda.emit import emit
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping

EXPECTED = Path(__file__).parent / "expected_cuda"


def candidate(width: int, rows_per_block: int = 1, min_blocks: int = 0, **knobs: Any) -> Candidate:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    mapping = CudaMapping(rows_per_block=rows_per_block, min_blocks=min_blocks)
    return Candidate(width=width, mapping=mapping, **(base | knobs))


GOLDEN = {
    "softmax_65_reload": ("softmax", 65, candidate(32, materialize="recompute")),
    "softmax_2048_online_cached": ("softmax", 2048, candidate(128, algorithm="online", input="cache", vector=4)),
    "rms_norm_4096_default": ("rms_norm", 4096, candidate(256, input="cache")),
    "rms_norm_100_every_knob": (
        "rms_norm",
        100,
        candidate(8, 4, 2, input="cache", fusion="fused", vector=2, unroll=2, partials=2),
    ),
    "layer_norm_8193_four_rows": ("layer_norm", 8193, candidate(256, 4, unroll=4)),
    "row_max_769": ("row_max", 769, candidate(64)),
}


def emitted(name: str) -> str:
    kernel, cols, made = GOLDEN[name]
    schedule = build_schedule(resolve_case({"kernel": kernel, "dims": {"rows": 7, "cols": cols}}), made)
    assert isinstance(schedule, Schedule), schedule
    return emit(schedule).tilelang_text


@pytest.mark.parametrize("name", GOLDEN)
def test_text_is_as_recorded(name: str) -> None:
    path = EXPECTED / f"{name}.py"
    text = emitted(name)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", GOLDEN)
def test_text_is_deterministic_python(name: str) -> None:
    assert emitted(name) == emitted(name)
    ast.parse(emitted(name))


def test_nothing_but_the_goldens_lies_beside_them() -> None:
    assert {path.stem for path in EXPECTED.glob("*.py")} == set(GOLDEN)

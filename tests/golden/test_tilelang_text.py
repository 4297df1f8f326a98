"""The TileLang text of a few candidates, whole. To accept a change: ``UPDATE_GOLDEN=1 pytest tests/golden``."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from search.lowering.cpu.emit import emit
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

EXPECTED = Path(__file__).parent / "expected"


def candidate(width: int, mapping: CpuMapping, **knobs: object) -> Candidate:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    return Candidate(width=width, mapping=mapping, **{**base, **knobs})


GOLDEN = {
    "softmax_65_default": (
        "softmax",
        65,
        candidate(32, CpuMapping(local_lanes=32), materialize="output"),
    ),
    "softmax_2048_whole_program": (
        "softmax",
        2048,
        candidate(8, CpuMapping(local_lanes=1, simd_scope="main"), materialize="recompute"),
    ),
    "rms_norm_4096_streamed": (
        "rms_norm",
        4096,
        candidate(64, CpuMapping(local_lanes=64, row_block=2, simd_scope="main", nontemporal=True), unroll=2),
    ),
    "rms_norm_100_every_knob": (
        "rms_norm",
        100,
        candidate(
            16,
            CpuMapping(local_lanes=4, row_block=2, simd_scope="all"),
            input="cache",
            fusion="fused",
            vector=2,
            unroll=4,
            partials=2,
        ),
    ),
    "layer_norm_769_cached": (
        "layer_norm",
        769,
        candidate(16, CpuMapping(local_lanes=16, simd_scope="all"), input="cache"),
    ),
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

"""The TileLang text of a few candidates, whole. To accept a change: ``UPDATE_GOLDEN=1 pytest tests/golden``."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from search.lowering.contract import Emitted
from search.lowering.cpu.emit import emit as emit_cpu
from search.lowering.cuda.emit import emit as emit_cuda
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping, CudaMapping


def candidate(width: int, mapping: CpuMapping | CudaMapping, **knobs: Any) -> Candidate:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    return Candidate(width=width, mapping=mapping, **(base | knobs))


def on_cuda(width: int, rows_per_block: int = 1, min_blocks: int = 0, **knobs: Any) -> Candidate:
    return candidate(width, CudaMapping(rows_per_block=rows_per_block, min_blocks=min_blocks), **knobs)


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A target's texts: where they lie, what emits them, and for what."""

    folder: Path
    emit: Callable[[Schedule], Emitted]
    kernels: Mapping[str, tuple[str, int, Candidate]]

    def text(self, name: str) -> str:
        kernel, cols, made = self.kernels[name]
        schedule = build_schedule(resolve_case({"kernel": kernel, "dims": {"rows": 7, "cols": cols}}), made)
        assert isinstance(schedule, Schedule), schedule
        return self.emit(schedule).tilelang_text


GOLDEN = {
    "cpu": Golden(
        folder=Path(__file__).parent / "expected",
        emit=emit_cpu,
        kernels={
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
        },
    ),
    "cuda": Golden(
        folder=Path(__file__).parent / "expected_cuda",
        emit=emit_cuda,
        kernels={
            "softmax_65_reload": ("softmax", 65, on_cuda(32, materialize="recompute")),
            "softmax_2048_online_cached": ("softmax", 2048, on_cuda(128, algorithm="online", input="cache", vector=4)),
            "rms_norm_4096_default": ("rms_norm", 4096, on_cuda(256, input="cache")),
            "rms_norm_100_every_knob": (
                "rms_norm",
                100,
                on_cuda(8, 4, 2, input="cache", fusion="fused", vector=2, unroll=2, partials=2),
            ),
            "layer_norm_8193_four_rows": ("layer_norm", 8193, on_cuda(256, 4, unroll=4)),
            "row_max_769": ("row_max", 769, on_cuda(64)),
        },
    ),
}
TEXTS = [(target, name) for target, golden in GOLDEN.items() for name in golden.kernels]


@pytest.mark.parametrize(("target", "name"), TEXTS)
def test_text_is_as_recorded(target: str, name: str) -> None:
    golden = GOLDEN[target]
    path, text = golden.folder / f"{name}.py", golden.text(name)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("target", "name"), TEXTS)
def test_text_is_deterministic_python(target: str, name: str) -> None:
    text = GOLDEN[target].text(name)
    assert text == GOLDEN[target].text(name)
    ast.parse(text)


@pytest.mark.parametrize("target", GOLDEN)
def test_nothing_but_the_goldens_lies_beside_them(target: str) -> None:
    golden = GOLDEN[target]
    assert {path.stem for path in golden.folder.glob("*.py")} == set(golden.kernels)

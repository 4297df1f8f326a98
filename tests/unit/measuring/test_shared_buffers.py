"""The bench of a program whose output is written over an input."""

from __future__ import annotations

import numpy as np
import pytest

from search.measuring.bench import Bench
from search.program.resolve import resolve_case

PROGRAM = {
    "name": "in_place",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input"},
        "w": {"axes": ["col"], "role": "input"},
        "y": {"axes": ["row", "col"], "role": "output", "aliases": "x"},
    },
    "body": [{"store": {"tensor": "y", "over": ["col"], "value": "x + w"}}],
}


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(resolve_case({"program": PROGRAM, "dims": {"rows": 3, "cols": 20}}), tmp_path)


def add(bench: Bench) -> dict[str, np.ndarray]:
    x = bench.buffers["x"].array
    with np.errstate(all="ignore"):
        np.add(x, bench.buffers["w"].array, out=x)
    return bench.output_arrays


def test_the_output_is_the_inputs_buffer_and_every_run_starts_from_its_values(bench: Bench) -> None:
    assert bench.buffers["y"] is bench.buffers["x"]
    verdict = bench.check(lambda: add(bench))
    assert verdict.rejection is None
    assert verdict.checks.passed
    assert verdict.checks.inputs_unchanged


def test_other_inputs_may_not_change_and_nothing_passes_unwritten(bench: Bench) -> None:
    assert bench.check(lambda: bench.output_arrays).rejection.reason == "wrong_values"

    def spoil() -> dict[str, np.ndarray]:
        bench.buffers["w"].array[0] += 1
        return add(bench)

    verdict = bench.check(spoil)
    assert verdict.rejection.reason == "input_modified"
    assert verdict.rejection.detail["tensors"] == ["w"]


def test_timing_starts_from_the_normal_values_again(bench: Bench) -> None:
    bench.load_normal()
    before = bench.buffers["x"].array.copy()
    add(bench)
    assert not np.array_equal(bench.buffers["x"].array, before)
    assert bench.harm() is None
    bench.reload_shared()
    np.testing.assert_array_equal(bench.buffers["x"].array, before)

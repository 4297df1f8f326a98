"""float16, bfloat16 and int32 on the bench: buffers, inputs, the oracle and the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from search.measuring.buffers import GuardedBuffer
from search.measuring.checks import Tally, compare_output
from search.measuring.inputs import EDGE_PATTERNS, NUMPY_DTYPES, input_passes, input_sha256
from search.measuring.integers import coordinate_extents
from search.measuring.oracle import Expected, load_oracle
from search.program.case import Case
from search.program.resolve import resolve_case

NONE = np.empty(0, dtype=np.intp)
LABELS: dict[str, Any] = {
    "name": "labelled",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "bfloat16"},
        "label": {"axes": ["row"], "role": "input", "dtype": "int32"},
        "bits": {"axes": ["row", "col"], "role": "input", "dtype": "int32"},
        "y": {"axes": ["row"], "role": "output", "dtype": "float16"},
        "both": {"axes": ["row"], "role": "output", "dtype": "int32"},
    },
    "body": [
        {"let": {"name": "wanted", "value": "label + 0"}},
        {"reduce": {"into": "one", "op": "sum", "over": ["col"], "value": "select(index(col) == wanted, x, 0.0)"}},
        {"reduce": {"into": "all", "op": "and", "over": ["col"], "value": "bits"}},
        {"store": {"tensor": "y", "over": [], "value": "one"}},
        {"store": {"tensor": "both", "over": [], "value": "all"}},
    ],
}


def labelled(rows: int = 40, cols: int = 33) -> Case:
    return resolve_case({"program": LABELS, "dims": {"rows": rows, "cols": cols}})


def half(dtype: str, rows: int = 40) -> Case:
    return resolve_case({"kernel": "softmax", "dims": {"rows": rows, "cols": 65}, "dtypes": {"x": dtype}})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_guards_and_poison_are_nan_in_both_16_bit_formats(dtype: str) -> None:
    buffer = GuardedBuffer((3, 7), NUMPY_DTYPES[dtype])
    assert (buffer.array.dtype, buffer.address % 64) == (NUMPY_DTYPES[dtype], 0)
    assert np.isnan(np.concatenate([guard.view(NUMPY_DTYPES[dtype]) for guard in buffer._guards])).all()
    buffer.poison()
    assert np.isnan(buffer.array).all()
    buffer.array[:, 1:] = np.nan  # a written NaN is not the poison
    unwritten = buffer.unwritten()
    assert unwritten is not None
    assert np.argwhere(unwritten).tolist() == [[0, 0], [1, 0], [2, 0]]
    assert buffer.damaged_guards() == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_inputs_are_rounded_and_their_edges_are_those_of_the_dtype(dtype: str) -> None:
    normal, offset, *edges = input_passes(half(dtype))
    for one in (normal, offset, *edges):
        assert one.inputs["x"].dtype == NUMPY_DTYPES[dtype]
    assert input_sha256(normal.inputs) == input_sha256(next(iter(input_passes(half(dtype)))).inputs)
    assert np.abs(offset.inputs["x"].astype(np.float64) - 1000).max() < 10
    assert edges[0].patterns == tuple(f"x:{name}" for name in EDGE_PATTERNS)
    denormal = np.abs(edges[0].inputs["x"].astype(np.float64))[
        list(EDGE_PATTERNS).index("denormal") :: len(EDGE_PATTERNS)
    ]
    assert (denormal < ml_dtypes.finfo(NUMPY_DTYPES[dtype]).smallest_normal).all()
    assert (np.count_nonzero(denormal, axis=1) > 40).all()


def test_labels_lie_on_their_axis_and_just_off_it_only_in_the_edge_rows() -> None:
    case = labelled()
    assert coordinate_extents(case) == {"label": 33}
    normal, offset, *edges = input_passes(case)
    for one in (normal, offset):
        assert ((one.inputs["label"] >= 0) & (one.inputs["label"] < 33)).all()
        assert len(np.unique(one.inputs["label"])) > 15
    assert {-(2**31), 2**31 - 1, -1, 0, 32, 33} <= set(edges[0].inputs["label"].tolist())
    assert (np.abs(normal.inputs["bits"]) <= 8).all()
    assert np.abs(offset.inputs["bits"].astype(np.int64)).max() > 2**30
    rows = {tuple(np.unique(row)) for row in edges[0].inputs["bits"]}
    assert {(-(2**31),), (2**31 - 1,), (0,), (-1,), (-(2**31), -1, 0, 2**31 - 1)} <= rows
    assert {"label:just_outside", "bits:mixed", "x:one_nan"} <= set(edges[0].patterns)


def test_the_oracle_comes_back_from_the_disk_as_it_was(tmp_path: Path) -> None:
    case = labelled(rows=3, cols=9000)  # large enough to be mapped
    first, again = (load_oracle(case, tmp_path) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert input_sha256(one.given.inputs) == input_sha256(other.given.inputs) == one.input_sha256
        assert one.given.inputs["x"].dtype == other.given.inputs["x"].dtype == NUMPY_DTYPES["bfloat16"]
        for name, dtype in (("y", np.float16), ("both", np.int32)):
            assert one.expected[name].values.dtype == dtype
            assert one.expected[name].values.tobytes() == other.expected[name].values.tobytes()
    x, bits = first[1].given.inputs["x"].astype(np.float64), first[1].given.inputs["bits"]
    picked = x[np.arange(3), first[1].given.inputs["label"]]
    assert first[1].expected["y"].values[:, 0].tolist() == picked.astype(np.float16).tolist()
    assert first[1].expected["both"].values[:, 0].tolist() == np.bitwise_and.reduce(bits, axis=1).tolist()
    assert (first[1].expected["both"].row_bound == 0).all()


def test_the_rows_bound_is_about_float32_arithmetic_not_about_the_output_s_rounding(tmp_path: Path) -> None:
    normal = load_oracle(half("bfloat16"), tmp_path)[0].expected["y"]
    largest = normal.values.astype(np.float64).max(axis=1)
    assert (normal.row_bound < largest * 2.0**-18).all()


def expected_of(values: np.ndarray, bound: float = 0.0) -> Expected:
    rows = np.full(len(values), bound)
    return Expected(
        values=values, row_bound=rows, range_indices=np.empty(0, np.int64), range_values=np.empty(0, values.dtype)
    )


@pytest.mark.parametrize(("ulps", "failing"), [(2, 0), (3, 1)])
def test_bfloat16_has_its_own_ulp(ulps: int, failing: int) -> None:
    want = np.array([[1.0, -3.5, np.nan, np.inf]], dtype=ml_dtypes.bfloat16)
    got = want.copy()
    got[0, 0] = 1 + ulps * 2.0**-7
    tally = Tally()
    compare_output("y", got, expected_of(want), NONE, tally)
    assert (sum(tally.failures.values()), tally.max_ulp_error) == (failing, ulps)
    got[0, 2] = 1
    compare_output("y", got, expected_of(want), NONE, tally)
    assert tally.failures["nan_mismatch"] == 1


def test_integers_are_compared_exactly() -> None:
    want = np.array([[2**31 - 1, -(2**31), 7]], dtype=np.int32)
    right = Tally()
    compare_output("y", want.copy(), expected_of(want), NONE, right)
    assert (right.failures, right.elements, right.max_abs_error) == ({}, 3, 0)
    wrong = Tally()
    compare_output("y", want + np.array([[0, 1, 0]], np.int32), expected_of(want), NONE, wrong)
    assert wrong.failures == {"wrong_values": 1}
    assert wrong.first_failure is not None
    assert wrong.first_failure["index"] == [0, 1]
    assert wrong.max_abs_error == 1
    opposite = Tally()
    compare_output("y", want[:, ::-1].copy(), expected_of(want), np.array([0]), opposite)
    assert opposite.failures == {"unwritten_elements": 1, "wrong_values": 1}
    assert opposite.max_abs_error == 2.0**31 - 8

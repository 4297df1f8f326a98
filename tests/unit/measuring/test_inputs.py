"""Input sets: determinism, statistics of each set, edge patterns where they belong."""

from __future__ import annotations

import numpy as np
import pytest

from search.measuring.inputs import EDGE_PATTERNS, input_passes, input_sha256
from search.program.resolve import resolve_case


def case_of(kernel: str = "layer_norm", rows: int = 64, cols: int = 256):
    return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}})


def test_equal_cases_give_equal_inputs_and_other_cases_others() -> None:
    digests = [[input_sha256(one.inputs) for one in input_passes(case_of())] for _ in range(2)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3
    other = [input_sha256(one.inputs) for one in input_passes(case_of(rows=65))]
    assert not set(other) & set(digests[0])


def test_digest_sees_shape_name_and_bytes() -> None:
    x = np.zeros((2, 3), dtype=np.float32)
    digests = {
        input_sha256({"x": x}),
        input_sha256({"y": x}),
        input_sha256({"x": x.reshape(3, 2)}),
        input_sha256({"x": -x}),
        input_sha256({"x": x.astype(np.float16)}),
    }
    assert len(digests) == 5


def test_normal_and_large_offset() -> None:
    normal, offset, _ = input_passes(case_of())
    assert (normal.name, offset.name) == ("normal", "large_offset")
    for one, mean in ((normal, 0.0), (offset, 1000.0)):
        assert one.inputs["x"].mean(dtype=np.float64) == pytest.approx(mean, abs=0.05)
        assert one.inputs["x"].std(dtype=np.float64) == pytest.approx(1, abs=0.05)
        assert one.inputs["weight"].mean() == pytest.approx(1, abs=0.1)
        assert one.inputs["x"].dtype == np.float32
        assert list(one.inputs) == ["x", "weight", "bias"]
        assert np.isfinite(one.inputs["x"]).all()


def test_each_edge_row_follows_its_pattern() -> None:
    *_, edge = input_passes(case_of())
    x = edge.inputs["x"]
    assert edge.patterns == tuple(f"x:{name}" for name in EDGE_PATTERNS)
    rows = {name: x[number :: len(EDGE_PATTERNS)] for number, name in enumerate(EDGE_PATTERNS)}
    infinite = np.isneginf(rows["some_minus_infinity"]).sum(axis=1)
    assert ((infinite > 0) & (infinite < 256)).all()
    assert (rows["one_hot"].sum(axis=1) == 1).all()
    assert (np.count_nonzero(rows["one_hot"], axis=1) == 1).all()
    assert (rows["constant"] == 2).all()
    tiny = np.abs(rows["denormal"])
    assert (tiny < np.finfo(np.float32).tiny).all()
    assert (tiny.max(axis=1) > 0).all()
    assert (np.isnan(rows["one_nan"]).sum(axis=1) == 1).all()
    assert np.isneginf(rows["all_minus_infinity"]).all()
    assert (rows["zeros"] == 0).all()
    assert (np.abs(rows["wide"]).max(axis=1) > 30).all()
    assert (np.isposinf(rows["one_plus_infinity"]).sum(axis=1) == 1).all()
    assert np.isfinite(edge.inputs["weight"]).all()


def test_the_marked_position_moves() -> None:
    *_, edge = input_passes(case_of(rows=90))
    places = np.argmax(np.isnan(edge.inputs["x"]), axis=1)[4::9]
    assert len(set(places.tolist())) >= 8


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 10])
def test_every_pattern_is_met_whatever_the_rows(rows) -> None:
    edges = [one for one in input_passes(case_of(rows=rows)) if one.name == "edge_rows"]
    assert {pattern for one in edges for pattern in one.patterns} == {f"x:{name}" for name in EDGE_PATTERNS}
    assert [one.number for one in edges] == list(range(len(edges)))
    assert len(edges) == max(1, -(-9 // rows))
    assert all(one.inputs["x"].shape == (rows, 256) for one in edges)


def test_one_column_is_enough() -> None:
    for one in input_passes(case_of(rows=3, cols=1)):
        assert one.inputs["x"].shape == (3, 1)


PAIR = {
    "name": "pair",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "a": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "b": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "s": {"axes": ["row"], "role": "input", "dtype": "float32"},
        "y": {"axes": ["row", "col"], "role": "output", "dtype": "float32"},
    },
    "body": [{"store": {"tensor": "y", "over": ["col"], "value": "a * b + s"}}],
}


@pytest.mark.parametrize("rows", [4, 18, 40])
def test_with_two_row_tensors_each_has_its_turn(rows) -> None:
    case = resolve_case({"program": PAIR, "dims": {"rows": rows, "cols": 8}})
    edges = [one for one in input_passes(case) if one.name == "edge_rows"]
    met = {pattern for one in edges for pattern in one.patterns}
    assert met == {f"{tensor}:{name}" for tensor in "ab" for name in EDGE_PATTERNS}
    for one in edges:  # never both in one row, or a NaN in one would hide the other
        assert not (np.isnan(one.inputs["a"]).any(axis=1) & np.isnan(one.inputs["b"]).any(axis=1)).any()
        assert np.isfinite(one.inputs["s"]).all()

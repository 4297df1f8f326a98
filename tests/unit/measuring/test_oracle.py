"""Oracle and yardstick: rounding, row bounds, the float32 range set, and the cache on disk."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from search.measuring import oracle
from search.measuring.nudge import stretched_sums
from search.measuring.oracle import compute_oracle, load_oracle
from search.measuring.yardstick import MOST_ORDERS, left_fold, may_shuffle, plain_evaluations
from search.program.desugar import desugar
from search.program.library import kernels
from search.program.resolve import resolve_case

TOTAL = {"into": "total", "op": "sum", "over": ["col"], "value": "x"}


def case_of(kernel: str, rows: int = 5, cols: int = 65):
    return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}})


def program_case(value: str, *, rows: int = 3, cols: int = 8, body: list | None = None):
    program = {
        "name": "probe",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "dtype": "float32"},
        },
        "body": [*(body or []), {"store": {"tensor": "y", "over": ["col"], "value": value}}],
    }
    return resolve_case({"program": program, "dims": {"rows": rows, "cols": cols}})


def test_expected_is_the_float64_softmax_rounded() -> None:
    normal = next(compute_oracle(case_of("softmax")))
    x = normal.given.inputs["x"].astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(normal.expected["y"].values, (e / e.sum(axis=1, keepdims=True)).astype(np.float32))


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (17, 65)])
def test_library_kernels_stay_in_float32_s_range(kernel, shape) -> None:
    for one in compute_oracle(case_of(kernel, *shape)):
        expected = one.expected["y"]
        assert expected.range_indices.size == 0
        assert expected.row_bound.shape == (shape[0],)
        assert (expected.row_bound >= np.finfo(np.float32).tiny).all()
        assert np.isfinite(expected.row_bound).all()


def test_bounds_tell_cancellation_from_rounding() -> None:
    """At mean 1000 a two-pass layer_norm keeps its bound far below the 0.43 by which a one-pass variance is wrong."""
    normal, offset, *_ = compute_oracle(case_of("layer_norm", 16, 1024))
    assert normal.expected["y"].row_bound.max() < 1e-4
    assert offset.expected["y"].row_bound.max() < 0.04
    assert offset.expected["y"].row_bound.min() > 1e-5


def test_no_row_has_a_lucky_bound() -> None:
    """Orders of summation differ by an ulp of the mean at least; a bound below that would refuse correct kernels."""
    offset = list(compute_oracle(case_of("layer_norm", 64, 7)))[1]
    x = offset.given.inputs["x"].astype(np.float32)
    worst = np.zeros(64)
    exact = offset.expected["y"].values.astype(np.float64)
    weight, bias = offset.given.inputs["weight"], offset.given.inputs["bias"]
    for shift in range(7):  # other orders than the yardstick's: rotations, as lanes would make them
        rolled = np.roll(x, shift, axis=1)
        mean = (np.cumsum(rolled, axis=1, dtype=np.float32)[:, -1:] / np.float32(7)).astype(np.float32)
        centered = x - mean
        variance = np.cumsum(centered * centered, axis=1, dtype=np.float32)[:, -1:] / np.float32(7)
        y = centered * (1 / np.sqrt(variance + np.float32(1e-5))) * weight + bias
        worst = np.maximum(worst, np.abs(y - exact).max(axis=1))
    assert (worst <= offset.expected["y"].row_bound).all()


def test_one_value_per_row_has_no_lucky_bound_in_large_cases_either() -> None:
    case = case_of("row_sum", 1024, 4096)
    normal = next(compute_oracle(case))
    x, expected = normal.given.inputs["x"], normal.expected["y"]
    lanes = np.cumsum(x.reshape(1024, 4, 1024), axis=2, dtype=np.float32)[:, :, -1]  # four folds, as a library does it
    other = np.cumsum(lanes, axis=1, dtype=np.float32)[:, -1:]
    assert (np.abs(other - expected.values.astype(np.float64)) <= expected.row_bound[:, np.newaxis]).all()


def test_where_float32_leaves_its_range_its_outcome_is_kept() -> None:
    case = program_case("log(total)", body=[{"reduce": {**TOTAL, "op": "product"}}], cols=20)
    offset = list(compute_oracle(case))[1]  # 1000^20 is infinite in float32, its logarithm is not in float64
    expected = offset.expected["y"]
    assert np.isfinite(expected.values).all()
    assert expected.range_indices.tolist() == list(range(60))
    assert np.isposinf(expected.range_values).all()


def test_a_product_whose_order_decides_between_zero_infinity_and_nan_may_have_each() -> None:
    # 0.5^200 is zero and 2^200 infinite in float32: their product is one, zero, infinite or NaN by the order alone
    case = program_case("total", body=[{"reduce": {**TOTAL, "op": "product"}}], cols=400)
    x = np.tile(np.repeat(np.float32([0.5, 2.0]), 200), (3, 1))
    plain = [float(evaluation["y"][0, 0]) for evaluation in plain_evaluations(case, {"x": x}, seed=1)]
    assert {0.0, np.inf} <= set(plain)
    case = program_case("total", body=[{"reduce": {**TOTAL, "op": "product"}}], cols=2000)
    ordinary = next(compute_oracle(case)).expected["y"]
    found = ordinary.range_values[ordinary.range_indices == 0]
    assert np.isposinf(np.abs(found)).any()
    assert np.isnan(found).any()
    # the same of a sum: no order leaves the range, and nothing but the truth is accepted
    case = program_case("total", body=[{"reduce": {**TOTAL, "op": "sum"}}], cols=400)
    assert next(compute_oracle(case)).expected["y"].range_indices.size == 0


def test_the_first_evaluation_is_the_left_fold() -> None:
    case = program_case(
        "total", body=[{"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}}], cols=50
    )
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32) + np.float32(1000)
    first = next(plain_evaluations(case, {"x": x}, seed=1))["y"]
    folded = np.zeros(3, dtype=np.float32)
    for column in range(50):
        folded += x[:, column]
    np.testing.assert_array_equal(first[:, 0].astype(np.float32), folded)


def test_shuffled_columns_come_back_in_place() -> None:
    case = case_of("layer_norm", 4, 33)
    inputs = next(compute_oracle(case)).given.inputs
    evaluations = list(plain_evaluations(case, inputs, seed=3))
    assert len(evaluations) == MOST_ORDERS + len(stretched_sums(case)) == MOST_ORDERS + 2
    for one in evaluations[1:]:
        np.testing.assert_allclose(one["y"], evaluations[0]["y"], atol=1e-5)
    assert len({one["y"].tobytes() for one in evaluations}) > 2


@pytest.mark.parametrize(
    ("value", "shuffles"),
    [("x * 2.0", True), ("x * cast(index(col), float32)", False), ("x[cols - 1 - col]", False)],
)
def test_columns_are_shuffled_only_where_they_are_exchangeable(value, shuffles) -> None:
    case = program_case(value)
    assert may_shuffle(case.program) is shuffles
    inputs = next(compute_oracle(case)).given.inputs
    assert (len(list(plain_evaluations(case, inputs, seed=0))) > 2) is shuffles


@pytest.mark.parametrize(("order", "evaluations"), [("any", MOST_ORDERS), ("strict", 2)])
def test_contributions_are_shuffled_where_columns_mean_something(order, evaluations) -> None:
    """One order may hit the true sum by luck, and the row would then refuse every other."""
    shape = {"shape": ["col"]} if order == "any" else {}
    body = [
        {"reducer": {"name": "acc", "op": "sum", "order": order} | shape},
        {"update": {"reducer": "acc", "over": ["col"], "value": "x"} | ({"index": ["0"]} if shape else {})},
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x[cols - 1 - col] + total"}},
    ]
    document = {
        "name": "probe",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row", "col"], "role": "output"}},
        "body": body,
    }
    case = resolve_case({"program": document, "dims": {"rows": 3, "cols": 300}})
    inputs = next(compute_oracle(case)).given.inputs
    found = [one["y"] for one in plain_evaluations(case, inputs, seed=1)]
    assert len(found) == evaluations
    assert (len({one.tobytes() for one in found}) > 2) is (order == "any")
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], atol=1e-3)


def test_strict_folds_stay_as_they_are() -> None:
    folded = left_fold(desugar(kernels()["layer_norm"].program))
    assert {s.order for s in folded.body if hasattr(s, "order")} == {"strict"}
    assert not may_shuffle(folded)
    peak = left_fold(desugar(kernels()["softmax"].program))
    assert {s.op: s.order for s in peak.body if hasattr(s, "order")} == {"max": "any", "sum": "strict"}


def test_the_cache_gives_back_what_was_computed(tmp_path) -> None:
    case = case_of("rms_norm", 64, 300)
    computed = load_oracle(case, tmp_path)
    read = load_oracle(case, tmp_path)
    assert isinstance(read[0].given.inputs["x"], np.memmap)
    for mine, theirs in zip(computed, read, strict=True):
        assert (mine.given.name, mine.given.number, mine.given.patterns) == (
            theirs.given.name,
            theirs.given.number,
            theirs.given.patterns,
        )
        assert mine.input_sha256 == theirs.input_sha256
        for name, array in mine.given.inputs.items():
            assert array.tobytes() == theirs.given.inputs[name].tobytes()
        for field in ("values", "row_bound", "range_indices", "range_values"):
            assert getattr(mine.expected["y"], field).tobytes() == getattr(theirs.expected["y"], field).tobytes()


def test_another_case_and_other_params_have_another_place(tmp_path) -> None:
    case = case_of("rms_norm")
    load_oracle(case, tmp_path)
    load_oracle(replace(case, params={"eps": 1e-3}), tmp_path)
    load_oracle(case, tmp_path)
    assert len(list((tmp_path / "oracle").iterdir())) == 2


@pytest.mark.parametrize("damage", ["", "[", json.dumps([{"name": "normal"}])])
def test_a_damaged_cache_is_computed_again(damage, tmp_path) -> None:
    case = case_of("rms_norm")
    load_oracle(case, tmp_path)
    (folder,) = (tmp_path / "oracle").iterdir()
    (folder / "passes.json").write_text(damage)
    assert len(load_oracle(case, tmp_path)) == 4
    assert len(json.loads((folder / "passes.json").read_text())) == 4  # and mended


def test_a_truncated_array_is_computed_again(tmp_path) -> None:
    case = case_of("rms_norm", 64, 300)
    load_oracle(case, tmp_path)
    (folder,) = (tmp_path / "oracle").iterdir()
    with (folder / "0.values.y.npy").open("r+b") as file:
        file.truncate(1000)
    assert load_oracle(case, tmp_path)[0].expected["y"].values.shape == (64, 300)


def test_the_least_recently_used_case_is_dropped(tmp_path, monkeypatch) -> None:
    sizes = []
    for rows in (40, 41, 42):
        load_oracle(case_of("softmax", rows, 500), tmp_path)
        sizes.append(sum(f.stat().st_size for f in (tmp_path / "oracle").rglob("*.npy")))
    load_oracle(case_of("softmax", 40, 500), tmp_path)  # used again: 41 is the oldest now
    monkeypatch.setattr(oracle, "CACHE_BYTES", sizes[-1] + 60_000)
    load_oracle(case_of("softmax", 43, 500), tmp_path)
    kept = {np.load(path / "0.input.x.npy").shape[0] for path in (tmp_path / "oracle").iterdir()}
    assert kept == {40, 42, 43}


def test_a_work_dir_that_cannot_be_written_costs_no_result(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert len(load_oracle(case_of("softmax", 9, 4), blocked)) == 3

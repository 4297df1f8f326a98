"""The comparison with the oracle: tolerance edges, NaN and infinity both ways, exact statistics, places of failures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from search.measuring import checks
from search.measuring.checks import Tally, compare_output, worst_reason
from search.measuring.oracle import Expected

TINY = float(np.finfo(np.float32).tiny)
NONE = np.empty(0, dtype=np.intp)


def expected_of(values, bound=TINY, range_at=(), range_values=()) -> Expected:
    array = np.atleast_2d(np.asarray(values, dtype=np.float32))
    return Expected(
        values=array,
        row_bound=np.broadcast_to(np.asarray(bound, dtype=np.float64), (array.shape[0],)).copy(),
        range_indices=np.asarray(range_at, dtype=np.int64),
        range_values=np.asarray(range_values, dtype=np.float32),
    )


def compared(got, expected: Expected, unwritten=NONE) -> Tally:
    tally = Tally()
    compare_output("y", np.atleast_2d(np.asarray(got, dtype=np.float32)), expected, unwritten, tally)
    return tally


def steps(value: float, count: int) -> float:
    bits = np.float32(value).view(np.int32) + count
    return float(np.int32(bits).view(np.float32))


@pytest.mark.parametrize(("count", "fails"), [(0, 0), (1, 0), (2, 0), (3, 1), (-1, 0), (-2, 0), (-3, 1)])
def test_two_ulp_pass_and_three_do_not(count, fails) -> None:
    tally = compared([steps(1.5, count)], expected_of([1.5]))
    assert tally.failures.get("wrong_values", 0) == fails
    assert tally.max_ulp_error == abs(count)
    assert tally.max_abs_error == abs(count) * 2.0**-23
    assert tally.max_rel_error == pytest.approx(abs(count) * 2.0**-23 / 1.5)
    assert tally.max_tolerance == 2 * 2.0**-23


def test_the_row_s_own_bound_counts() -> None:
    tally = compared([[1.01], [1.01]], expected_of([[1.0], [1.0]], bound=[0.02, 0.005]))
    assert tally.failures == {"wrong_values": 1}
    assert tally.first_failure["index"] == [1, 0]
    assert tally.first_failure["tolerance"] == 0.005


@pytest.mark.parametrize(("got", "fails"), [(0.0, 0), (TINY / 2, 0), (2 * TINY, 1), (-TINY / 2, 0), (-TINY, 1)])
def test_flushing_denormals_is_allowed(got, fails) -> None:
    tally = compared([got], expected_of([TINY / 4]))
    assert sum(tally.failures.values()) == fails
    assert tally.max_ulp_error == 0  # below the smallest normal number no ulp and no ratio is reported
    assert tally.max_rel_error == 0
    assert tally.max_abs_error == pytest.approx(abs(got - TINY / 4))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("got", "want", "failure"),
    [
        (NAN, NAN, None),
        (INF, INF, None),
        (-INF, -INF, None),
        (0.0, -0.0, None),
        (NAN, 1.0, "nan_mismatch"),
        (1.0, NAN, "nan_mismatch"),
        (INF, NAN, "nan_mismatch"),
        (NAN, INF, "nan_mismatch"),
        (INF, 1.0, "wrong_values"),
        (3e38, INF, "wrong_values"),
        (-INF, INF, "wrong_values"),
        (3e38, -3e38, "wrong_values"),
    ],
)
def test_values_that_are_not_finite_match_exactly(got, want, failure) -> None:
    tally = compared([1.0, got, 2.0], expected_of([1.0, want, 2.0], bound=0.1))
    assert tally.failures == ({failure: 1} if failure else {})
    if failure:
        assert tally.first_failure["index"] == [0, 1]
        assert tally.first_failure["kind"] == failure
        if math.isfinite(got) and math.isfinite(want):
            assert tally.finite("max_abs_error") == pytest.approx(6e38)
        else:
            assert tally.finite("max_abs_error") is None
    else:
        assert tally.max_abs_error == 0


def test_unwritten_elements_are_counted_once() -> None:
    got = np.array([[1.0, NAN, 3.0]], dtype=np.float32)
    tally = compared(got, expected_of([1.0, 2.0, 3.0]), unwritten=np.array([1]))
    assert tally.failures == {"unwritten_elements": 1}
    assert tally.first_failure == {
        "tensor": "y",
        "index": [0, 1],
        "got": "nan",
        "expected": 2.0,
        "tolerance": None,
        "kind": "unwritten_elements",
    }


def test_unwritten_counts_even_where_the_oracle_says_nan() -> None:
    tally = compared([NAN], expected_of([NAN]), unwritten=np.array([0]))
    assert tally.failures == {"unwritten_elements": 1}


@pytest.mark.parametrize(("got", "fails"), [(INF, 0), (5.0, 0), (NAN, 1), (6.0, 1), (-INF, 1)])
def test_where_float32_leaves_its_range_either_outcome_is_right(got, fails) -> None:
    tally = compared([1.0, got], expected_of([1.0, 5.0], range_at=[1], range_values=[INF]))
    assert sum(tally.failures.values()) == fails


def test_an_excused_distance_is_no_error() -> None:
    tally = compared([1.0, 0.0], expected_of([1.0, 5.0], range_at=[1], range_values=[0.0]))
    assert tally.failures == {}
    assert tally.max_abs_error == tally.max_rel_error == tally.max_ulp_error == 0.0
    assert tally.max_abs_error <= tally.max_tolerance


@pytest.mark.parametrize(("got", "passes"), [(INF, True), (0.0, True), (np.nan, True), (-INF, False), (2.0, False)])
def test_an_element_may_have_several_outcomes_out_of_range(got, passes) -> None:
    expected = expected_of([1.0, 5.0, 1.0], range_at=[1, 1, 1, 2], range_values=[0.0, INF, np.nan, INF])
    assert (compared([1.0, got, 1.0], expected).failures == {}) == passes


def test_the_range_set_excuses_only_its_elements() -> None:
    tally = compared([INF, INF], expected_of([5.0, 5.0], range_at=[1], range_values=[INF]))
    assert tally.failures == {"wrong_values": 1}
    assert tally.first_failure["index"] == [0, 0]


@pytest.mark.parametrize("shape", [(3, 7), (1, 100_000), (1000, 100), (40_000, 1), (2, 32_769)])
def test_places_are_right_across_blocks(shape) -> None:
    rows, columns = shape
    want = np.ones(shape, dtype=np.float32)
    bad = [(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2)]
    for row, column in bad:
        got = want.copy()
        got[row, column] = 2
        tally = compared(got, expected_of(want))
        assert tally.first_failure["index"] == [row, column]
        assert tally.failures == {"wrong_values": 1}
        assert tally.elements == rows * columns
        assert tally.max_abs_error == 1


def test_a_tally_gathers_several_outputs() -> None:
    tally = Tally()
    for value in (1.0, 1.5):
        compare_output("y", np.full((2, 3), value, dtype=np.float32), expected_of(np.ones((2, 3))), NONE, tally)
    assert tally.elements == 12
    assert tally.failures == {"wrong_values": 6}
    assert tally.max_abs_error == 0.5


def test_float16_has_its_own_ulp() -> None:
    want = np.array([[1.0, 2.0**-14]], dtype=np.float16)
    expected = Expected(
        values=want,
        row_bound=np.array([2.0**-14]),
        range_indices=np.empty(0, dtype=np.int64),
        range_values=np.empty(0, dtype=np.float16),
    )
    for count, fails in ((2, 0), (3, 1)):
        tally = Tally()
        got = want.copy()
        got[0, 0] += count * np.float16(2.0**-10)
        compare_output("y", got, expected, NONE, tally)
        assert sum(tally.failures.values()) == fails
        assert tally.max_ulp_error == count


def test_worst_reason() -> None:
    assert worst_reason({}) is None
    assert worst_reason({"wrong_values": 1}) == "wrong_values"
    assert worst_reason({"wrong_values": 9, "nan_mismatch": 1}) == "nan_mismatch"
    assert worst_reason({"nan_mismatch": 9, "unwritten_elements": 1, "wrong_values": 1}) == "unwritten_elements"


values = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, TINY, TINY / 8])
)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 9))
def test_agrees_with_one_element_at_a_time(data, rows, columns) -> None:
    """The blocked comparison against a plain loop over the definition."""
    shape = (rows, columns)
    want = data.draw(arrays.arrays(np.float32, shape, elements=values))
    near = data.draw(arrays.arrays(np.int32, shape, elements=st.integers(-4, 4)))
    with np.errstate(all="ignore"):
        close = (want.view(np.int32) + near).view(np.float32)
    other = data.draw(arrays.arrays(np.float32, shape, elements=values))
    got = np.where(data.draw(arrays.arrays(bool, shape)), close, other)
    bound = data.draw(st.sampled_from([TINY, 1e-6, 0.5]))
    tally = compared(got, expected_of(want, bound=bound))

    failures = {"wrong_values": 0, "nan_mismatch": 0}
    for mine, exact in zip(got.ravel().tolist(), want.ravel().tolist(), strict=True):
        if math.isnan(mine) or math.isnan(exact):
            failures["nan_mismatch"] += math.isnan(mine) != math.isnan(exact)
        elif math.isinf(mine) or math.isinf(exact):
            failures["wrong_values"] += mine != exact
        else:
            ulp = max(2.0 ** (math.frexp(exact)[1] - 24), 2.0**-149) if exact else 2.0**-149
            failures["wrong_values"] += abs(mine - exact) > max(2 * ulp, bound)
    assert {kind: tally.failures.get(kind, 0) for kind in failures} == failures
    assert tally.elements == got.size
    assert sum(failures.values()) or tally.max_abs_error <= tally.max_tolerance


def test_small_blocks_give_the_same_numbers(monkeypatch) -> None:
    generator = np.random.default_rng(1)
    want = generator.standard_normal((37, 41)).astype(np.float32)
    got = want + generator.standard_normal((37, 41)).astype(np.float32) * np.float32(1e-6)
    got[3, 4], want[5, 6], got[5, 6] = np.nan, np.inf, np.inf
    whole = compared(got, expected_of(want, bound=1e-6))
    monkeypatch.setattr(checks, "_BLOCK_ELEMENTS", 17)
    assert compared(got, expected_of(want, bound=1e-6)) == whole

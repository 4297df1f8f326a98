"""The sign-test interval against the published table and against its definition."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.stats.intervals import median_interval, order_statistic_rank

# Ranks of the 95 % interval of a median, as printed in tables of the sign test.
TABLE = {5: None, 6: 1, 8: 1, 9: 2, 10: 2, 11: 2, 12: 3, 15: 4, 17: 5, 20: 6, 25: 8, 30: 10, 40: 14, 50: 18}


@pytest.mark.parametrize(("count", "rank"), TABLE.items())
def test_rank_agrees_with_the_table(count: int, rank: int | None) -> None:
    assert order_statistic_rank(count) == rank


@pytest.mark.parametrize("count", range(1, 13))
def test_rank_agrees_with_counting_every_outcome(count: int) -> None:
    below = [sum(outcome) for outcome in itertools.product((0, 1), repeat=count)]

    def coverage(k: int) -> Fraction:  # the median lies between k-th smallest and k-th largest
        return Fraction(sum(k <= number <= count - k for number in below), len(below))

    wide_enough = [k for k in range(1, (count + 1) // 2 + 1) if coverage(k) >= Fraction(95, 100)]
    assert order_statistic_rank(count) == (max(wide_enough) if wide_enough else None)


def test_exact_edge_is_inside() -> None:
    # Six samples cover with 1 − 2/64 = 0.96875 exactly: asking for that much is met, for more is not.
    assert order_statistic_rank(6, Fraction(31, 32)) == 1
    assert order_statistic_rank(6, Fraction(31, 32) + Fraction(1, 10**12)) is None


def test_interval_of_fifteen_samples() -> None:
    interval = median_interval([float(i) for i in range(1, 16)][::-1])
    assert interval is not None
    assert (interval.low, interval.high) == (4.0, 12.0)
    assert interval.coverage == pytest.approx(0.964844, abs=1e-6)
    assert interval.contains(4.0)
    assert not interval.contains(3.9)


def test_five_samples_are_too_few() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_interval([]) is None


def test_refusals() -> None:
    with pytest.raises(ValueError, match="NaN"):
        median_interval([float("nan")] * 8)
    with pytest.raises(ValueError, match="confidence"):
        order_statistic_rank(10, Fraction(1))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=60))
def test_interval_is_ordered_and_covers_enough(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval is not None
    assert min(samples) <= interval.low <= interval.high <= max(samples)
    assert 0.95 <= interval.coverage < 1

"""Median, range, deviation: values by hand, and refusals."""

import pytest

from search.stats.summary import largest_deviation, median, observed_range


@pytest.mark.parametrize(
    ("samples", "middle"), [([3.0], 3.0), ([1.0, 9.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 8.0], 3.0), ([5, 5, 1], 5)]
)
def test_median_by_hand(samples: list[float], middle: float) -> None:
    assert median(samples) == middle


def test_observed_range_keeps_the_slow_sample() -> None:
    seen = observed_range([2.0, 1.5, 40.0])
    assert (seen.low, seen.high) == (1.5, 40.0)


def test_largest_deviation_looks_both_ways() -> None:
    assert largest_deviation([1.0, 1.0, 1.25]) == pytest.approx(0.25)
    assert largest_deviation([1.0, 1.0, 0.5]) == pytest.approx(0.5)
    assert largest_deviation([7.0]) == 0.0


@pytest.mark.parametrize("function", [median, observed_range, largest_deviation])
@pytest.mark.parametrize("samples", [[], [1.0, float("nan")]])
def test_no_samples_and_nan_are_refused(function, samples) -> None:
    with pytest.raises(ValueError, match=r"sample"):
        function(samples)


def test_deviation_needs_a_positive_median() -> None:
    with pytest.raises(ValueError, match="positive median"):
        largest_deviation([0.0, 0.0])

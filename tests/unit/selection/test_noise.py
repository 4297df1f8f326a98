"""Noise floor: largest stray of the default's re-timings, clipped to [1 %, 25 %]; unknown below five."""

import pytest

from search.selection.noise import LARGEST_FLOOR, MINIMUM_RETIMES, SMALLEST_FLOOR, assumed_floor, noise_floor


def test_the_floor_is_the_largest_ratio_to_the_median():
    assert noise_floor([1.00, 1.02, 0.95, 1.01, 1.00]) == pytest.approx(0.05)
    assert noise_floor([2.00, 2.04, 1.98, 2.20, 2.00]) == pytest.approx(0.10)


def test_the_floor_is_clipped_at_both_ends():
    assert noise_floor([1.0] * 5) == SMALLEST_FLOOR == 0.01
    assert noise_floor([1.0, 1.0, 1.0, 1.0, 3.0]) == LARGEST_FLOOR == 0.25


def test_fewer_than_five_retimings_say_nothing_and_count_as_the_largest_floor():
    assert MINIMUM_RETIMES == 5
    assert noise_floor([1.0, 1.5, 0.5, 1.0]) is None
    assert assumed_floor(None) == LARGEST_FLOOR
    assert assumed_floor(0.03) == 0.03

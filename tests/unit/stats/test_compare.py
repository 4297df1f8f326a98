"""Paired ratios: pairing, class before rounding, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.stats.compare import classify, paired_ratios


def test_ratios_are_paired_within_rounds() -> None:
    # A machine that doubles its speed half way: pairing cancels it, the ratio of medians would not be the point.
    compared = paired_ratios([4.0, 4.0, 2.0, 2.0], [2.0, 2.0, 1.0, 1.0])
    assert compared.ratios == (2.0, 2.0, 2.0, 2.0)
    assert (compared.median, compared.low, compared.high, compared.ratio_class) == (2.0, 2.0, 2.0, "positive")
    assert compared.interval is None


def test_median_of_ratios_is_not_ratio_of_medians() -> None:
    compared = paired_ratios([1.0, 2.0, 9.0], [1.0, 4.0, 3.0])
    assert compared.median == 1.0
    assert compared.ratio_class == "mixed"


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.0000001, 1.5], "positive"),
        ([0.9999999, 0.5], "negative"),
        ([1.0, 1.5], "mixed"),
        ([0.5, 1.0], "mixed"),
        ([0.9, 1.1], "mixed"),
    ],
)
def test_class_is_decided_before_rounding(ratios: list[float], expected: str) -> None:
    assert classify(ratios) == expected


def test_interval_comes_with_enough_rounds() -> None:
    compared = paired_ratios([1.1] * 15, [1.0] * 15)
    assert compared.interval is not None
    assert not compared.interval.contains(1.0)


@pytest.mark.parametrize(
    ("top", "bottom"), [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [float("inf")]), ([float("nan")], [1.0]), ([], [])]
)
def test_unusable_samples_are_refused(top: list[float], bottom: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_ratios(top, bottom)
    with pytest.raises(ValueError):
        classify([])


@given(st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3)), min_size=1, max_size=30))
def test_swapping_the_arms_swaps_the_class(pairs: list[tuple[float, float]]) -> None:
    top, bottom = [a for a, _ in pairs], [b for _, b in pairs]
    swapped = {"positive": "negative", "negative": "positive", "mixed": "mixed"}
    there, back = paired_ratios(top, bottom), paired_ratios(bottom, top)
    assert back.ratio_class == swapped[there.ratio_class] or 1.0 in (*there.ratios, *back.ratios)
    assert there.low <= there.median <= there.high


def test_rounds_of_one_sitting_count_as_one_piece_of_evidence() -> None:
    """Eighteen rounds that all say slower would convince; of six processes one says faster, and that does not."""
    slower = [1.02] * 15 + [0.98] * 3
    per_round = paired_ratios(slower, [1.0] * 18).interval
    per_sitting = paired_ratios(slower, [1.0] * 18, sittings=6).interval
    assert per_round is not None
    assert not per_round.contains(1)
    assert per_sitting is not None
    assert (per_sitting.low, per_sitting.high) == (0.98, 1.02)
    assert per_sitting.contains(1)


def test_fewer_than_six_sittings_can_tell_nothing_apart() -> None:
    assert paired_ratios([2.0] * 20, [1.0] * 20, sittings=5).interval is None


@pytest.mark.parametrize("sittings", [0, -1, 4])
def test_sittings_hold_equally_many_rounds(sittings: int) -> None:
    with pytest.raises(ValueError, match="sittings of equally many"):
        paired_ratios([1.0] * 18, [1.0] * 18, sittings=sittings)

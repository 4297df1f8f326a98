"""Ratios paired within rounds: sample r of one arm against sample r of the other. Pure, standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from search.stats.intervals import MedianInterval, median_interval
from search.stats.summary import median, observed_range

RatioClass = Literal["positive", "negative", "mixed"]


@dataclass(frozen=True, kw_only=True)
class PairedRatios:
    """``ratios[r]`` belongs to round r. ``low`` and ``high`` are the observed range, not a confidence interval.

    The median of the ratios need not equal the ratio of the medians.
    """

    ratios: tuple[float, ...]
    median: float
    low: float
    high: float
    ratio_class: RatioClass
    """positive: every ratio > 1; negative: every ratio < 1; else mixed. Decided before any rounding."""
    interval: MedianInterval | None
    """95 % sign-test interval of the median ratio; None with too few rounds (or sittings, when there are several)."""


def classify(ratios: Sequence[float]) -> RatioClass:
    """Class of unrounded ratios. A ratio of exactly 1 makes the class mixed. ValueError on none."""
    if not ratios:
        raise ValueError("no ratios")
    if all(ratio > 1.0 for ratio in ratios):
        return "positive"
    if all(ratio < 1.0 for ratio in ratios):
        return "negative"
    return "mixed"


def paired_ratios(numerator: Sequence[float], denominator: Sequence[float], *, sittings: int = 1) -> PairedRatios:
    """``numerator[r] / denominator[r]`` round by round: above 1 means that the denominator's arm is faster.

    Rounds of one process share its luck and are no independent evidence, so with several ``sittings`` (consecutive
    groups of equally many rounds) the interval is that of the sittings' median ratios.
    ValueError unless both hold equally many, at least one, finite and positive samples, a multiple of ``sittings``.
    """
    if len(numerator) != len(denominator):
        raise ValueError(f"unpaired samples: {len(numerator)} against {len(denominator)}")
    if any(not (math.isfinite(sample) and sample > 0) for sample in (*numerator, *denominator)):
        raise ValueError("a duration must be finite and positive")
    if sittings < 1 or len(numerator) % sittings:
        raise ValueError(f"{len(numerator)} rounds cannot be {sittings} sittings of equally many")
    ratios = tuple(top / bottom for top, bottom in zip(numerator, denominator, strict=True))
    seen = observed_range(ratios)
    rounds = len(ratios) // sittings
    independent = (
        ratios if sittings == 1 else [median(ratios[at : at + rounds]) for at in range(0, len(ratios), rounds)]
    )
    return PairedRatios(
        ratios=ratios,
        median=median(ratios),
        low=seen.low,
        high=seen.high,
        ratio_class=classify(ratios),
        interval=median_interval(independent),
    )

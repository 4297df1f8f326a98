"""Median and observed range. Pure, standard library; every figure is a plain function of the samples given."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Range:
    """The smallest and largest sample seen. An observed range, not a confidence interval."""

    low: float
    high: float


def median(samples: Sequence[float]) -> float:
    """Middle sample, or the mean of the middle two. ValueError on no samples or a NaN."""
    _require_numbers(samples)
    return statistics.median(samples)


def observed_range(samples: Sequence[float]) -> Range:
    """``[min, max]`` of the samples. ValueError on no samples or a NaN."""
    _require_numbers(samples)
    return Range(low=min(samples), high=max(samples))


def largest_deviation(samples: Sequence[float]) -> float:
    """max |sample / median − 1|: how far one sample strays from its median (0 for one sample).

    ValueError on no samples, a NaN, or a median that is not positive.
    """
    middle = median(samples)
    if middle <= 0:
        raise ValueError("a deviation relative to the median needs a positive median")
    return max(abs(sample / middle - 1.0) for sample in samples)


def _require_numbers(samples: Sequence[float]) -> None:
    if not samples:
        raise ValueError("no samples")
    if any(math.isnan(sample) for sample in samples):
        raise ValueError("a sample is NaN")

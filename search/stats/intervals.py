"""Distribution-free interval of a median from order statistics (the sign test). Pure, standard library.

Source: the number of samples below the true median is Binomial(n, 1/2), so the interval between the k-th smallest
and the k-th largest sample covers the median with probability 1 − 2·P(Binomial(n, 1/2) < k)
(e.g. Conover, *Practical Nonparametric Statistics*, 3rd ed., section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

CONFIDENCE = Fraction(95, 100)


@dataclass(frozen=True, kw_only=True)
class MedianInterval:
    """``[low, high]`` covers the median with at least the confidence asked for; ``coverage`` is the exact value."""

    low: float
    high: float
    coverage: float

    def contains(self, value: float) -> bool:
        """True when the value lies in the closed interval."""
        return self.low <= value <= self.high


def order_statistic_rank(count: int, confidence: Fraction = CONFIDENCE) -> int | None:
    """Largest k (1-based) whose interval from k-th smallest to k-th largest has the confidence; None if none has.

    Exact: counted in integers, so that no rounding decides at the edge. At 95 % six samples are the fewest.
    """
    if not 0 < confidence < 1:
        raise ValueError("confidence lies strictly between 0 and 1")
    allowed = (1 - confidence) * 2**count
    below, rank = 0, None
    for k in range(1, (count + 1) // 2 + 1):
        below += math.comb(count, k - 1)
        if 2 * below > allowed:
            break
        rank = k
    return rank


def median_interval(samples: Sequence[float], confidence: Fraction = CONFIDENCE) -> MedianInterval | None:
    """Sign-test interval of the samples' median; None when there are too few samples for the confidence.

    ValueError on a NaN.
    """
    if any(math.isnan(sample) for sample in samples):
        raise ValueError("a sample is NaN")
    count = len(samples)
    rank = order_statistic_rank(count, confidence)
    if rank is None:
        return None
    ordered = sorted(samples)
    missed = 2 * sum(math.comb(count, i) for i in range(rank))
    return MedianInterval(low=ordered[rank - 1], high=ordered[count - rank], coverage=1 - missed / 2**count)

"""The figures of an acceptance, worked out anew from raw samples. IEEE doubles, as the formulas read; no rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catalogs.auditing.shapes import INCONCLUSIVE_ABOVE, MARGIN_FLOOR


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a case's rounds say of the candidate beside one opponent. Ratios above 1: the candidate is faster."""

    word: str
    """positive, negative, mixed or control."""
    median: float
    low: float
    high: float


def middle(samples: Sequence[float]) -> float:
    """The median: the middle sample, or the mean of the middle two."""
    ordered = sorted(samples)
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


def compare(opponent: Sequence[float], candidate: Sequence[float], *, same_code: bool) -> Comparison:
    """The comparison of two arms' values, paired by round."""
    ratios = [x / c for x, c in zip(opponent, candidate, strict=True)]
    if same_code:
        word = "control"
    elif min(ratios) > 1:
        word = "positive"
    elif max(ratios) < 1:
        word = "negative"
    else:
        word = "mixed"
    return Comparison(word=word, median=middle(ratios), low=min(ratios), high=max(ratios))


def spread(control: Sequence[float], candidate: Sequence[float]) -> float:
    """How far the candidate's code strays from itself: the largest |A / C − 1| of a round."""
    return max(abs(a / c - 1) for a, c in zip(control, candidate, strict=True))


def margin(spread_of_case: float) -> float:
    """How much slower than an opponent a case may be before it counts as worse."""
    return max(MARGIN_FLOOR, spread_of_case)


def state(spread_of_case: float, deciding_medians: Sequence[float]) -> str:
    """What becomes of a case; ``deciding_medians`` are the device_batch ratios against R, D and I."""
    if spread_of_case > INCONCLUSIVE_ABOVE:
        return "inconclusive"
    return "worse" if any(ratio < 1 - margin(spread_of_case) for ratio in deciding_medians) else "ok"

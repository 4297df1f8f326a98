"""The noise floor of a case: how far re-timings of one unchanged kernel strayed during its search."""

from __future__ import annotations

from collections.abc import Sequence

from search.stats.summary import largest_deviation

MINIMUM_RETIMES = 5
"""The default is timed again at least so often, spread through the search."""
SMALLEST_FLOOR = 0.01
LARGEST_FLOOR = 0.25


def noise_floor(retime_medians_seconds: Sequence[float]) -> float | None:
    """Largest |ratio to their median − 1| over the default's re-timings, clipped to [1 %, 25 %].

    None with fewer than five: the noise is then unknown (the default was rejected), see :func:`assumed_floor`.
    ValueError unless the medians are positive.
    """
    if len(retime_medians_seconds) < MINIMUM_RETIMES:
        return None
    return min(max(largest_deviation(retime_medians_seconds), SMALLEST_FLOOR), LARGEST_FLOOR)


def assumed_floor(floor: float | None) -> float:
    """The floor that finalists are chosen by. Unknown noise counts as the largest: more finalists, never fewer."""
    return LARGEST_FLOOR if floor is None else floor

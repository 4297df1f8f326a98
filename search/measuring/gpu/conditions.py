"""Under what conditions a group of samples was taken, and whether they were those of the others. Pure.

A group is one phase of one candidate, or one round of finals. It deviates when the card ran it at a clock below the
highest that this child has seen under load, or was throttled by heat or power brakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search.measuring.gpu.card import THROTTLED, CardState, Process

CLOCK_TOLERANCE = 0.05
"""A group's clock may be so far below the highest seen under load."""
MOST_REPEATS = 2
"""A group that deviates is taken again so often; then it stands, marked."""


class Contended(Exception):  # noqa: N818 - an event, handled next to the call
    """Somebody else computed on the card while a group was taken."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.pids = tuple(process.pid for process in processes)
        super().__init__(f"processes {list(self.pids)} compute on this device too")


class Clocks:
    """The highest clock under load so far, and what deviates from it."""

    def __init__(self) -> None:
        self._highest_hz = 0

    def deviation(self, states: Sequence[CardState]) -> str | None:
        """Why these moments under load are not like the others; None if they are. Remembers the highest clock."""
        reasons = sorted({reason for state in states for reason in state.throttle_reasons} & THROTTLED)
        if reasons:
            return f"throttled: {', '.join(reasons)}"
        clocks = [state.sm_clock_hz for state in states if state.sm_clock_hz is not None]
        if not clocks:
            return None
        self._highest_hz = max(self._highest_hz, *clocks)
        if min(clocks) < (1 - CLOCK_TOLERANCE) * self._highest_hz:
            return f"clock {min(clocks) / 1e6:.0f} MHz, others ran at {self._highest_hz / 1e6:.0f} MHz"
        return None


def conditions_document(states: Sequence[CardState], *, repeats: int, deviation: str | None) -> dict[str, Any]:
    """JSON of a group's conditions: the moments seen under load, how often it was taken again, what still deviates."""
    return {"states": [state.document() for state in states], "repeats": repeats, "deviates": deviation}

"""What following the cost score would have cost. A reading of the search itself, not an independent gain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from search.selection.contender import Contender


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The trial that the score would have chosen, and what it lost against the in-search minimum."""

    trial: str
    regret: float
    """Its device_batch median / the smallest median − 1; 0 when the score found the fastest."""


def predict(contenders: Iterable[Contender]) -> Prediction | None:
    """The score's choice among measured trials of the space: smallest score, ties in canonical order, null last.

    None when nothing in the space was measured, or nothing measured has a score.
    """
    in_space = [contender for contender in contenders if contender.in_space]
    if all(contender.score is None for contender in in_space):
        return None
    chosen = min(in_space, key=lambda c: (c.score is None, c.score or 0.0, c.ordinal))
    fastest_seconds = min(contender.median_seconds for contender in in_space)
    return Prediction(trial=chosen.id, regret=chosen.median_seconds / fastest_seconds - 1)

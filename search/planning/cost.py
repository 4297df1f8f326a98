"""The cost score: a prior on paper. It ranks plans; it never prunes the measured search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from search.errors import InvalidInput, Problem
from search.planning.demand import Demand


@dataclass(frozen=True, kw_only=True)
class CostFacts:
    """What a policy may see of a plan. It can touch neither ownership nor budget."""

    demand: Demand
    width: int
    lanes_per_row: int
    private_scalars: int


class CostPolicy(Protocol):
    """Scores a plan for one device; smaller is better, None means unknown and ranks last. Pure."""

    def score(self, facts: CostFacts) -> float | None:
        """The score of one row, in units of one scalar round of a whole packet."""
        ...


@dataclass(frozen=True, kw_only=True)
class LinearCostPolicy:
    """scalar_rounds + collective_rounds + g·global_bytes + p·private_bytes, per-lane figures × L / W.

    The coefficients are rounds per byte, finite and non-negative (else InvalidInput). With the zeros of the default
    the score counts rounds only.
    """

    global_byte: float = 0.0
    private_byte: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            Problem(
                field=f"/{name}",
                value=value,
                message="a cost coefficient is a finite number of rounds per byte, not negative",
                allowed=">= 0, finite",
            )
            for name, value in vars(self).items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
        ]
        if problems:
            raise InvalidInput(problems)

    def score(self, facts: CostFacts) -> float | None:
        """See the class; None when the demand is not available."""
        if not facts.demand.available:
            return None
        lane = facts.demand.per_lane
        work = (
            lane.scalar_rounds
            + lane.collective_rounds
            + self.global_byte * (lane.global_read_bytes + lane.global_write_bytes)
            + self.private_byte * (lane.private_read_bytes + lane.private_write_bytes)
        )
        return work * facts.lanes_per_row / facts.width

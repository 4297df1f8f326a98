"""The private budget: how many scalars of private tiles one lane may hold."""

from __future__ import annotations

from typing import Any

from search.errors import InvalidInput, Problem
from search.outcome import Rejected
from search.planning.schedule import Schedule

DEFAULT_BUDGET_SCALARS = 64


def validate_budget(value: Any, *, pointer: str = "/private_budget_scalars") -> int | None:
    """The budget that a caller gave: a non-negative integer, or None for unlimited; InvalidInput otherwise."""
    if value is None or (type(value) is int and value >= 0):
        return value
    message = "the private budget is a whole number of scalars per lane, or null for no limit"
    raise InvalidInput([Problem(field=pointer, value=value, message=message, allowed="integer >= 0, or null")])


def check_budget(schedule: Schedule, budget_scalars: int | None) -> Rejected | None:
    """Rejected (``private_budget``) when the private tiles exceed the budget; None when they fit or it is unlimited.

    The detail has both numbers and every tile's share. Partials and row scalars are not counted.
    """
    if budget_scalars is None or schedule.private_scalars <= budget_scalars:
        return None
    return Rejected(
        stage="constraints",
        reason="private_budget",
        detail={
            "private_scalars": schedule.private_scalars,
            "budget_scalars": budget_scalars,
            "row_block": schedule.candidate.row_block,
            "tiles": [
                {"name": tile.name, "kind": tile.kind, "extent": tile.extent, "stripe_scalars": tile.stripe_scalars}
                for tile in schedule.private_tiles
            ],
        },
    )

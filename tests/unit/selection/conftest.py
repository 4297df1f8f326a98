"""Contenders for the selection tests."""

from collections.abc import Callable

import pytest

from search.selection.contender import Contender
from search.space.candidate import Candidate, CpuMapping


def contender(ordinal: int, median_seconds: float, **changes: object) -> Contender:
    word = changes.pop("input", "cache")
    fusion = changes.pop("fusion", "separate")
    fields: dict[str, object] = {
        "id": f"t{ordinal}",
        "ordinal": ordinal,
        "candidate": Candidate(
            width=8,
            input=word,
            fusion=fusion,
            materialize="private",
            vector=1,
            unroll=1,
            partials=1,
            mapping=CpuMapping(local_lanes=8),
        ),
        "in_space": True,
        "is_default": False,
        "code": f"code{ordinal}",
        "median_seconds": median_seconds,
    }
    return Contender(**{**fields, **changes})


@pytest.fixture
def make() -> Callable[..., Contender]:
    return contender

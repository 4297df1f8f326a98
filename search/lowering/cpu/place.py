"""Where in a traversal the text stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """The pass, the partial, the offset inside the pass, the lane; and which elements the lanes run over."""

    pass_: str
    partial: str
    offset: str
    lane: str
    main: bool
    first: int
    """Offset inside the pass of the lanes' first element."""
    count: int
    """How many elements they run over, side by side."""

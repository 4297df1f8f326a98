"""What a candidate's words choose for one program: inputs kept, loads fused, tiles stored, stores streamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.planning.fusion import Admitted


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The structural part of a candidate, made concrete for one program."""

    cached: tuple[str, ...]
    """Inputs kept in private storage."""
    fused: Mapping[str, Admitted]
    """Admissions of the cached inputs whose load is fused."""
    recompute: bool
    stored: frozenset[str]
    """Tiles with storage: every private one, whether or not a later loop reads it, and those staged in an output."""
    staged: Mapping[str, str]
    """Stored tile to the output that holds it."""
    streaming: frozenset[int]
    """Sizes (bytes) of the elements whose stores may stream."""

"""Candidates that differ in one knob alone, for comparing what the knob did."""

from __future__ import annotations

from dataclasses import replace

from search.space.candidate import Candidate


def cached_twin(candidate: Candidate) -> Candidate | None:
    """The same candidate with every input cached; None for one that caches them all, or fuses.

    Its space need not hold it, and where nothing can be cached no space does.
    """
    if candidate.input == "cache" or candidate.fusion == "fused":
        return None
    return replace(candidate, input="cache")

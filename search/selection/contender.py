"""A Contender: what selection knows of one measured trial. Trials with identical machine code form one Group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from search.space.candidate import Candidate


def is_reload(candidate: Candidate) -> bool:
    """Whether every input is read from global memory in every phase, and nothing is fused: what a reference must be."""
    words = {candidate.input} if isinstance(candidate.input, str) else {word for _, word in candidate.input}
    return words <= {"reload"} and candidate.fusion == "separate"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One trial that ended as measured."""

    id: str
    ordinal: int
    """Canonical order within the case."""
    candidate: Candidate
    in_space: bool
    """Only these can be selected: a default outside the space is measured for comparison."""
    is_default: bool
    code: str
    """``artifact_sha256``: equal for identical machine code."""
    median_seconds: float
    """device_batch median of the search, its own or inherited from the trial whose code it shares."""
    inherits: bool = False
    """Its timing is another trial's (``same_code_as``)."""
    private_scalars: int = 0
    score: float | None = None
    registers: int | None = None
    stack_bytes: int = 0

    @property
    def preference(self) -> tuple[int, int, int, int, int]:
        """Sort key that settles ties: private scalars, registers, stack bytes, reload before cache, canonical order."""
        return (
            self.private_scalars,
            self.registers or 0,
            self.stack_bytes,
            0 if is_reload(self.candidate) else 1,
            self.ordinal,
        )


@dataclass(frozen=True, kw_only=True)
class Group:
    """The contenders of one machine code. They tie by definition and are timed once, by their representative."""

    members: tuple[Contender, ...]
    """In canonical order; never empty."""

    @property
    def representative(self) -> Contender:
        """The member that is run: the first that was timed itself, else (that one was rejected later) the first."""
        return next((m for m in self.members if not m.inherits), self.members[0])

    @property
    def median_seconds(self) -> float:
        """device_batch median of the search."""
        return self.representative.median_seconds

    def eligible(self, *, reload_only: bool = False) -> tuple[Contender, ...]:
        """Members that may be selected, best preference first: in the space, and reload ones if asked."""
        chosen = (m for m in self.members if m.in_space and (not reload_only or is_reload(m.candidate)))
        return tuple(sorted(chosen, key=lambda m: m.preference))


def groups_of(contenders: Iterable[Contender]) -> tuple[Group, ...]:
    """Contenders grouped by machine code, fastest first; equal medians in canonical order."""
    by_code: dict[str, list[Contender]] = {}
    for contender in sorted(contenders, key=lambda c: c.ordinal):
        by_code.setdefault(contender.code, []).append(contender)
    groups = (Group(members=tuple(members)) for members in by_code.values())
    return tuple(sorted(groups, key=lambda g: (g.median_seconds, g.members[0].ordinal)))

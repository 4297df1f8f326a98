"""Which trials are measured again, interleaved, before a winner is named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from search.selection.contender import Contender, Group, groups_of
from search.selection.noise import assumed_floor

MAXIMUM_FINALISTS = 8
MAXIMUM_RELOAD_FINALISTS = 4
MINIMUM_FINALISTS = 2


@dataclass(frozen=True, kw_only=True)
class Finalists:
    """Trials to measure in the finals: one per machine code, in canonical order."""

    trials: tuple[str, ...]
    """Empty when nothing in the space was measured."""
    provisional: tuple[str, ...] = ()
    """Of those: the search's best, its best reload and the default, which surely deserve all four phases."""


def choose_finalists(contenders: Iterable[Contender], *, floor: float | None) -> Finalists:
    """Finalists of a case whose search is over.

    Within the noise floor of the in-search best, at most eight; reload ones within the floor of the best reload, at
    most four; and the default, in the space or not. At least two if two codes of the space were measured. Identical
    machine code counts once: its representative runs. ``floor`` is a fraction; None (unknown) counts as the largest.
    """
    groups = groups_of(contenders)
    in_space = [group for group in groups if group.eligible()]
    if not in_space:
        return Finalists(trials=())
    reloads = [group for group in groups if group.eligible(reload_only=True)]
    defaults = [group for group in groups if any(member.is_default for member in group.members)]
    near_best = _within(in_space, floor, MAXIMUM_FINALISTS)
    chosen = [
        *(near_best if len(near_best) >= MINIMUM_FINALISTS else in_space[:MINIMUM_FINALISTS]),
        *_within(reloads, floor, MAXIMUM_RELOAD_FINALISTS),
        *defaults,
    ]
    return Finalists(trials=_ids(chosen), provisional=_ids([in_space[0], *reloads[:1], *defaults]))


def _within(groups: list[Group], floor: float | None, most: int) -> list[Group]:
    """The fastest groups whose median lies within the floor of the first's."""
    if not groups:
        return []
    limit_seconds = groups[0].median_seconds * (1 + assumed_floor(floor))
    return [group for group in groups[:most] if group.median_seconds <= limit_seconds]


def _ids(groups: list[Group]) -> tuple[str, ...]:
    """Each group's representative once, in canonical order."""
    representatives = {group.representative.id: group.representative.ordinal for group in groups}
    return tuple(sorted(representatives, key=lambda trial: representatives[trial]))

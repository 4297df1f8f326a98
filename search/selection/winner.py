"""Who wins: leader, tie set, and the tie-break, from the interleaved finals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from search.selection.contender import Contender, groups_of
from search.stats.compare import paired_ratios
from search.stats.summary import median


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the finals say of a set of trials."""

    leader: str | None
    """The code with the smallest finals median, by the trial that was run."""
    tie_set: tuple[str, ...]
    """The leader's code and every code whose paired interval includes 1: for each, the trial preferred in a tie."""
    winner: str | None
    """First of the tie set."""


NOTHING = Selection(leader=None, tie_set=(), winner=None)


def select(
    samples_seconds: Mapping[str, Sequence[float]],
    contenders: Iterable[Contender],
    *,
    reload_only: bool = False,
    sittings: int = 1,
) -> Selection:
    """Leader, tie set and winner among the trials of the space that were finalists.

    ``samples_seconds[id][r]`` is the sample of round r, the rounds of ``sittings`` processes one after the other;
    ``reload_only`` gives the reference. Trials with identical
    machine code tie by definition: they share their representative's samples and all take part in the tie-break, so
    the winner may be one that was never timed itself; the tie set names one trial for each distinct code. The default
    takes part only if the space holds it. A code is tied with the leader unless the 95 % sign-test interval of its
    ratios to the leader, per round or (when there are several) per sitting, excludes 1; with too few for an interval
    nothing can be told apart.
    """
    preferred: dict[str, Contender] = {}
    for group in groups_of(contenders):
        eligible = group.eligible(reload_only=reload_only)
        sampled = next((member.id for member in group.members if member.id in samples_seconds), None)
        if eligible and sampled is not None:
            preferred[sampled] = eligible[0]
    if not preferred:
        return NOTHING
    leader = min(preferred, key=lambda trial: (median(samples_seconds[trial]), preferred[trial].preference))
    tied = [
        preferred[trial] for trial in preferred if trial == leader or _ties(samples_seconds, trial, leader, sittings)
    ]
    tie_set = tuple(contender.id for contender in sorted(tied, key=lambda c: c.preference))
    return Selection(leader=leader, tie_set=tie_set, winner=tie_set[0])


def _ties(samples_seconds: Mapping[str, Sequence[float]], trial: str, leader: str, sittings: int) -> bool:
    """Whether the interval of the ratios trial / leader includes 1, or there is none."""
    interval = paired_ratios(samples_seconds[trial], samples_seconds[leader], sittings=sittings).interval
    return interval is None or interval.contains(1)

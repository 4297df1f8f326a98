"""What is missing? Pure: a case's ledger in, the next steps out. The pipeline and the service loop over it.

A step is a request, not a fact: performing it yields events (``search.events``) that the driver stores. Steps may be
lost, repeated or done out of order; asking again always gives what is still missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from search.events import BaselineMeasured, CaseSettled, DefaultRetimed, FinalsMeasured, FreshBuilt, Revalidated
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import Checks, Timing
from search.space.candidate import Candidate

BUILD_BATCH = 12
"""Candidates per compiler call: the share of one candidate stops falling there (design/4)."""
MEASURE_CHUNK = 8
MINIMUM_RETIMES = 5
"""The default is timed again at least so often, spread through the search."""


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """One trial as the ledger knows it."""

    id: str
    ordinal: int
    """Canonical order within the case; an out-of-space default comes last."""
    candidate: Candidate
    in_space: bool
    is_default: bool
    outcome: Literal["pending", "measured", "rejected", "not_run"]
    private_scalars: int = 0
    score: float | None = None
    plan: Mapping[str, Any] | None = None
    artifact: Artifact | None = None
    facts: CodeFacts | None = None
    checks: Checks | None = None
    timing: Timing = field(default_factory=dict)
    same_code_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaseState:
    """One case as the ledger knows it."""

    id: str
    trials: tuple[TrialState, ...]
    """In canonical order."""
    baselines_wanted: tuple[str, ...]
    retimes: tuple[DefaultRetimed, ...] = ()
    finals: FinalsMeasured | None = None
    baselines: Mapping[str, BaselineMeasured] = field(default_factory=dict)
    fresh: Mapping[str, FreshBuilt] = field(default_factory=dict)
    revalidated: Mapping[str, Revalidated] = field(default_factory=dict)
    settled: CaseSettled | None = None

    def trial(self, trial_id: str) -> TrialState:
        """The trial of that id (KeyError if none)."""
        return {t.id: t for t in self.trials}[trial_id]


@dataclass(frozen=True, kw_only=True)
class Build:
    """Lower and compile these trials in one batch. Compile queue; overlaps the search."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Check and time these trials, then the default once more. Device queue; may overlap compiling.

    ``trials`` may be empty (only re-time the default, ``retimes`` times).
    """

    trials: tuple[str, ...]
    retimes: int = 1
    first_retime_sequence: int = 0


@dataclass(frozen=True, kw_only=True)
class ShareCode:
    """These trials' machine code equals an already measured one's: check them (never timed), inherit its timing."""

    trials: tuple[tuple[str, str], ...]
    """(trial, trial whose code it shares)."""


@dataclass(frozen=True, kw_only=True)
class Finals:
    """Measure finalists interleaved in one child. Device queue, quiet (nothing overlaps)."""

    trials: tuple[str, ...]
    all_phases: tuple[str, ...]
    """Trials that also get all four phases: at least the provisional winner, best reload and default."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Measure a baseline side by side with the winner (None: alone). Device queue, quiet."""

    name: str
    against: str | None


@dataclass(frozen=True, kw_only=True)
class FreshBuild:
    """Lower and compile these trials in a new process, bypassing the artifact store. Compile queue."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Revalidate:
    """Compare fresh builds with the record and check them against the oracle. Device queue."""

    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Settle:
    """Everything is there: write the case's result. Pure, done by the driver."""

    result: CaseSettled


Step: TypeAlias = Build | Measure | ShareCode | Finals | Baseline | FreshBuild | Revalidate | Settle

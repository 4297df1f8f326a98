"""Plans: every candidate of a case with its planning facts or its rejection. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from search.outcome import Rejected
from search.planning.budget import DEFAULT_BUDGET_SCALARS, check_budget, validate_budget
from search.planning.build import ScheduleBuilder
from search.planning.cost import CostFacts, CostPolicy, LinearCostPolicy
from search.planning.default import default_candidate
from search.planning.demand import Demand, demand
from search.planning.schedule import Schedule
from search.program.case import Case
from search.space.candidate import Candidate
from search.space.enumerate import Space

DEFAULT_POLICY = LinearCostPolicy()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Planning facts of a candidate. Facts only: they never change the emitted source."""

    private_scalars: int
    allocated_scalars: int
    partial_scalars: int
    score: float | None
    demand: Demand

    def document(self) -> dict[str, Any]:
        """JSON form (the ``plan`` object of a trial)."""
        return {**vars(self), "demand": self.demand.document()}


@dataclass(frozen=True, kw_only=True)
class PlannedCandidate:
    """A candidate of a case: its plan, its rejection, or both (over budget: the numbers stay visible)."""

    candidate: Candidate
    plan: Plan | None
    rejection: Rejected | None
    schedule: Schedule | None
    """None when the candidate is illegal."""
    in_space: bool = True
    is_default: bool = False

    def document(self) -> dict[str, Any]:
        """JSON form: the planning part of a trial, outcome ``planned`` or ``rejected``."""
        rejected = self.rejection
        return {
            "candidate": self.candidate.document(),
            "in_space": self.in_space,
            "is_default": self.is_default,
            "outcome": "planned" if rejected is None else "rejected",
            "stage": None if rejected is None else rejected.stage,
            "reason": None if rejected is None else rejected.reason,
            "detail": None if rejected is None else dict(rejected.detail),
            "plan": None if self.plan is None else self.plan.document(),
        }


def plan_candidate(
    case: Case,
    candidate: Candidate,
    *,
    budget_scalars: int | None = DEFAULT_BUDGET_SCALARS,
    policy: CostPolicy = DEFAULT_POLICY,
) -> PlannedCandidate:
    """Plan one candidate. ``budget_scalars`` None is unlimited; InvalidInput for a bad budget."""
    return _planned(ScheduleBuilder(case), candidate, validate_budget(budget_scalars), policy)


def plan_case(
    case: Case,
    space: Space,
    *,
    budget_scalars: int | None = DEFAULT_BUDGET_SCALARS,
    policy: CostPolicy = DEFAULT_POLICY,
    first: int = 0,
) -> Iterator[PlannedCandidate]:
    """Plan every candidate of the space in canonical order, lazily, then the default if the space lacks it.

    Exactly one item is ``is_default``; only an appended default is not ``in_space``. ``budget_scalars`` None is
    unlimited; InvalidInput for a bad budget, at once and not at the first item. ``first``: how many items are left out,
    and not planned either.
    """
    budget_scalars = validate_budget(budget_scalars)
    builder = ScheduleBuilder(case)
    default = default_candidate(case, space.target, builder=builder)
    return _plan_all(builder, default, space, budget_scalars, policy, first)


def plan_of(schedule: Schedule, policy: CostPolicy = DEFAULT_POLICY) -> Plan:
    """The planning facts of a schedule."""
    counted = demand(schedule)
    facts = CostFacts(
        demand=counted,
        width=schedule.candidate.width,
        lanes_per_row=schedule.lanes_per_row,
        private_scalars=schedule.private_scalars,
    )
    return Plan(
        private_scalars=schedule.private_scalars,
        allocated_scalars=schedule.allocated_scalars,
        partial_scalars=schedule.partial_scalars,
        score=policy.score(facts),
        demand=counted,
    )


def _plan_all(
    builder: ScheduleBuilder,
    default: Candidate,
    space: Space,
    budget_scalars: int | None,
    policy: CostPolicy,
    first: int,
) -> Iterator[PlannedCandidate]:
    seen = False
    for place, candidate in enumerate(space.candidates()):
        is_default = candidate == default
        seen = seen or is_default
        if place >= first:
            yield _planned(builder, candidate, budget_scalars, policy, is_default=is_default)
    if not seen and first <= space.size:
        yield _planned(builder, default, budget_scalars, policy, is_default=True, in_space=False)


def _planned(
    builder: ScheduleBuilder,
    candidate: Candidate,
    budget_scalars: int | None,
    policy: CostPolicy,
    *,
    is_default: bool = False,
    in_space: bool = True,
) -> PlannedCandidate:
    built = builder.build(candidate)
    return PlannedCandidate(
        candidate=candidate,
        plan=None if isinstance(built, Rejected) else plan_of(built, policy),
        rejection=built if isinstance(built, Rejected) else check_budget(built, budget_scalars),
        schedule=None if isinstance(built, Rejected) else built,
        in_space=in_space,
        is_default=is_default,
    )

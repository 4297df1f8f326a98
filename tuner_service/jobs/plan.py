"""A dry run: every candidate of a request with its plan or its rejection. Nothing is stored, nothing is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from search.planning.plan import PlannedCandidate, plan_case
from search.program.case import Case
from tuner_service.jobs.request import ResolvedCase, ResolvedRequest


def plan_items(resolved: ResolvedRequest, position: int) -> Iterator[dict[str, Any]]:
    """Items of one case, shaped like trials, with outcome ``planned`` or ``rejected``; lazy, in canonical order."""
    item = resolved.cases[position]
    for ordinal, planned in enumerate(plan_case(item.case, item.space, budget_scalars=resolved.budget_scalars)):
        yield _item(item.case, position, ordinal, planned)


def plan_document(resolved: ResolvedRequest, *, limit: int, offset: int = 0) -> dict[str, Any]:
    """``{"request", "items", "total", "cases"}``: ``limit`` items from ``offset``, and counts over all of them.

    ``total`` counts items (a default beside the space included); each case's counts are over its space.
    """
    items: list[dict[str, Any]] = []
    cases, total = [], 0
    for position, resolved_case in enumerate(resolved.cases):
        counts = _Counts()
        planned = plan_case(resolved_case.case, resolved_case.space, budget_scalars=resolved.budget_scalars)
        for ordinal, candidate in enumerate(planned):
            counts.add(candidate)
            if offset <= total < offset + limit:
                items.append(_item(resolved_case.case, position, ordinal, candidate))
            total += 1
        cases.append(counts.document(resolved_case))
    return {"request": dict(resolved.document), "items": items, "total": total, "cases": cases}


class _Counts:
    """Outcomes of one case's candidates that are in its space."""

    def __init__(self) -> None:
        self.planned = 0
        self.reasons: Counter[str] = Counter()

    def add(self, planned: PlannedCandidate) -> None:
        if planned.in_space and planned.rejection is None:
            self.planned += 1
        elif planned.in_space and planned.rejection is not None:
            self.reasons[planned.rejection.reason] += 1

    def document(self, of: ResolvedCase) -> dict[str, Any]:
        rejected = sum(self.reasons.values())
        return {
            **of.case.document(),
            "enumerated": self.planned + rejected,
            "planned": self.planned,
            "rejected": rejected,
            "reasons": dict(self.reasons.most_common()),
            "inert_knobs": list(of.space.inert_knobs),
            "space": of.space.document(),
        }


def _item(case: Case, position: int, ordinal: int, planned: PlannedCandidate) -> dict[str, Any]:
    return {
        "id": None,
        "job_id": None,
        "case_index": position,
        "ordinal": ordinal,
        "case": case.document(),
        **planned.document(),
        "same_code_as": None,
        "overlapped": None,
        "code": None,
        "timing": None,
        "checks": None,
        "attempt": None,
        "worker": None,
        "created_at": None,
        "finished_at": None,
    }

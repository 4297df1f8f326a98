"""Pages of a dry run: every candidate of a request with its plan or its rejection, in the order of the job's trials.

Nothing is stored between pages. The first page plans everything, because it counts; a later one plans only its own
candidates, so reading a large plan to its end costs two plannings and not one per page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from search.errors import InvalidInput, Problem
from search.planning.default import default_candidate
from search.planning.plan import PlannedCandidate, plan_candidate, plan_case
from tuner_service.jobs.request import ResolvedCase, ResolvedRequest

_CURSOR = re.compile(r"from-([0-9]{1,9})")


def plan_page(request: ResolvedRequest, *, cursor: str | None, limit: int) -> dict[str, Any]:
    """``{"items", "next", "total", "cases"}``; ``cases`` holds the counts of each case, on the first page only.

    Raises InvalidInput for a cursor that is not one of ours.
    """
    start = _start(cursor)
    if start == 0:
        items, counts = _first_page(request, limit)
        total = sum(count["enumerated"] + count["outside_space"] for count in counts)
    else:
        lengths = [_length(resolved) for resolved in request.cases]
        total, counts = sum(lengths), []
        items = [_item(*found) for found in _slice(request, lengths, start, limit)]
    following = start + len(items)
    return {
        "items": items,
        "next": f"from-{following}" if following < total and items else None,
        "total": total,
        "cases": counts,
    }


def _start(cursor: str | None) -> int:
    match = _CURSOR.fullmatch(cursor) if cursor else None
    if match:
        return int(match[1])
    if cursor:
        message, allowed = "this is not a cursor of a plan", "the `next` of the page before, with the same body"
        raise InvalidInput([Problem(field="/query/cursor", value=cursor, message=message, allowed=allowed)])
    return 0


def _first_page(request: ResolvedRequest, limit: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    items: list[dict[str, Any]] = []
    counts = []
    for index, resolved in enumerate(request.cases):
        reasons: Counter[str] = Counter()
        enumerated = outside = 0
        for planned in plan_case(resolved.case, resolved.space, budget_scalars=request.budget_scalars):
            enumerated += planned.in_space
            outside += not planned.in_space
            if planned.in_space and planned.rejection is not None:
                reasons[planned.rejection.reason] += 1
            if len(items) < limit:
                items.append(_item(index, resolved, planned))
        rejected = sum(reasons.values())
        counts.append(
            {
                "case": resolved.case.document(),
                "enumerated": enumerated,
                "rejected": rejected,
                "planned": enumerated - rejected,
                "reasons": dict(sorted(reasons.items())),
                "outside_space": outside,
                "inert_knobs": list(resolved.space.inert_knobs),
                "space": resolved.space.document(),
            }
        )
    return items, counts


def _length(resolved: ResolvedCase) -> int:
    default = default_candidate(resolved.case, resolved.space.target)
    return resolved.space.size + all(candidate != default for candidate in resolved.space.candidates())


def _slice(
    request: ResolvedRequest, lengths: list[int], start: int, limit: int
) -> Iterator[tuple[int, ResolvedCase, PlannedCandidate]]:
    offset = 0
    for index, (resolved, length) in enumerate(zip(request.cases, lengths, strict=True)):
        first, last = max(start - offset, 0), min(start + limit - offset, length)
        offset += length
        if first >= last:
            continue
        default = default_candidate(resolved.case, resolved.space.target)
        candidates = [*islice(resolved.space.candidates(), first, last)]
        in_space = len(candidates)
        candidates += [default] * (last - first - in_space)
        for position, candidate in enumerate(candidates):
            planned = plan_candidate(resolved.case, candidate, budget_scalars=request.budget_scalars)
            yield index, resolved, _placed(planned, is_default=candidate == default, in_space=position < in_space)


def _placed(planned: PlannedCandidate, *, is_default: bool, in_space: bool) -> PlannedCandidate:
    return PlannedCandidate(**{**vars(planned), "is_default": is_default, "in_space": in_space})


def _item(index: int, resolved: ResolvedCase, planned: PlannedCandidate) -> dict[str, Any]:
    return {"case_index": index, "case": resolved.case.document(), **planned.document()}

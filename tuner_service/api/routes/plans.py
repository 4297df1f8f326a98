"""``/v1/plans``: what a job would try, and what it would reject."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from search.errors import InvalidInput, Problem
from tuner_service.api import kinds, schemas
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import REQUEST_EXAMPLES, json_body, problems
from tuner_service.api.pages import Cursor, page_response
from tuner_service.api.requests import resolve
from tuner_service.jobs.plan import plan_document

router = APIRouter(prefix="/v1/plans", tags=["plans"])

DEFAULT_PLAN_ITEMS = 2000
MAX_PLAN_ITEMS = 25_000
_CURSOR = re.compile(r"from-([0-9]{1,9})")


@router.post(
    "",
    summary="Dry run of a job",
    response_model=None,
    responses={
        200: {"model": schemas.PlanPage},
        **problems(kinds.BODY_TOO_LARGE, kinds.NOT_READY, kinds.STORAGE_UNAVAILABLE),
    },
    openapi_extra=json_body("JobRequest", REQUEST_EXAMPLES),
)
def create_plan(
    request: Request,
    context: ContextOf,
    raw: Annotated[bytes, Depends(read_body)],
    limit: Annotated[int, Query(ge=1, le=MAX_PLAN_ITEMS, description="Most items in this page.")] = DEFAULT_PLAN_ITEMS,
    cursor: Cursor = None,
) -> JSONResponse:
    """Takes the body of a job and answers every candidate with its plan (private scalars, demand, score) or its
    rejection with the numbers. Compiles, measures and stores nothing, so the device need not be there: one that was
    attached once will do, and so do `cpu` and every compile-only device. `cases` counts each case over the whole plan,
    whatever the page; send the same body with `cursor` for the next page."""
    offset = _offset(cursor)
    plan = plan_document(resolve(context, parse_object(raw), planning=True), limit=limit, offset=offset)
    following = offset + len(plan["items"])
    more = bool(plan["items"]) and following < plan["total"]
    return page_response(request, {**plan, "next": f"from-{following}" if more else None})


def _offset(cursor: str | None) -> int:
    """Where a page begins. Plans are made anew for each page in the same order, so a position is all it takes."""
    match = _CURSOR.fullmatch(cursor) if cursor else None
    if match:
        return int(match[1])
    if cursor:
        message, allowed = "this is not a cursor of a plan", "the `next` of the page before, with the same body"
        raise InvalidInput([Problem(field="/query/cursor", value=cursor, message=message, allowed=allowed)])
    return 0

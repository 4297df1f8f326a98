"""``/v1/plans``: what a job would try, and what it would reject."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from tuner_service.api import kinds, schemas
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import REQUEST_EXAMPLES, json_body, problems
from tuner_service.api.dry_run import plan_page
from tuner_service.api.pages import Cursor, page_response
from tuner_service.api.requests import resolve

router = APIRouter(prefix="/v1/plans", tags=["plans"])

DEFAULT_PLAN_ITEMS = 2000
MAX_PLAN_ITEMS = 25_000


@router.post(
    "",
    summary="Dry run of a job",
    response_model=None,
    responses={
        200: {"model": schemas.PlanPage},
        **problems(kinds.BODY_TOO_LARGE, kinds.INVALID_REQUEST, kinds.NOT_READY, kinds.STORAGE_UNAVAILABLE),
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
    rejection with the numbers. Compiles, measures and stores nothing. `cases` counts each case over the whole plan and
    stands on the first page only; send the same body with `cursor` for the next page."""
    return page_response(request, plan_page(resolve(context, parse_object(raw)), cursor=cursor, limit=limit))

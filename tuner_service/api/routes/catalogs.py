"""``/v1/catalogs``: freeze finished jobs, list what is frozen, and serve it unchanged for ever."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from tuner_service.api import kinds, schemas_catalogs
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.caching import ETAG_HEADERS, IMMUTABLE, NOT_MODIFIED, cached_response
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import json_body, problems
from tuner_service.api.pages import DEFAULT_PAGE_ITEMS, Cursor, Limit, page_response
from tuner_service.db.queries import catalogs as catalog_queries
from tuner_service.jobs.freeze_catalog import freeze_jobs, read_freeze_request

router = APIRouter(prefix="/v1/catalogs", tags=["catalogs"])

Digest = Annotated[str, Path(description="Digest of a catalog.", max_length=64, examples=["0" * 64])]
_EXAMPLES = {
    "one job": {"summary": "Every case of one job", "value": {"jobs": ["job_00000000000000000000000000"]}},
    "one kernel of it": {
        "summary": "Only the cases of softmax, with a label",
        "value": {
            "jobs": ["job_00000000000000000000000000"],
            "cases": [{"kernel": "softmax"}],
            "labels": {"team": "kernels"},
        },
    },
}


@router.post(
    "",
    summary="Freeze finished jobs into a reference and a candidate catalog",
    status_code=201,
    response_model=None,
    responses={
        201: {
            "model": schemas_catalogs.FrozenDocument,
            "description": "Both catalogs, and what could not be frozen.",
            "headers": {"Location": {"description": "The candidate catalog.", "schema": {"type": "string"}}},
        },
        **problems(kinds.BODY_TOO_LARGE, kinds.CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
    openapi_extra=json_body("FreezeRequest", _EXAMPLES),
)
def freeze_catalogs(context: ContextOf, raw: Annotated[bytes, Depends(read_body)]) -> JSONResponse:
    """The winner of each case goes into the candidate catalog and the best that reloads its inputs into the reference
    catalog, whatever was gained. Both must have been built again alone, in a new process, to the same source, machine
    code and plan, and checked again; a case that lacks this, or a winner, is in `left_out` with the reason.

    Freezing again gives the same digests. Two jobs with one key and different winners answer 409 and are both named."""
    frozen = freeze_jobs(context.database, read_freeze_request(parse_object(raw)))
    location = f"/v1/catalogs/{frozen['candidate']['digest']}"
    return JSONResponse(frozen, status_code=201, headers={"Location": location})


@router.get(
    "",
    summary="List catalogs, newest first",
    response_model=None,
    responses={200: {"model": schemas_catalogs.CatalogPage}, **problems(kinds.STORAGE_UNAVAILABLE)},
)
def list_catalogs(
    request: Request,
    context: ContextOf,
    role: Annotated[Literal["candidate", "reference"] | None, Query(description="Only catalogs in this role.")] = None,
    limit: Limit = DEFAULT_PAGE_ITEMS,
    cursor: Cursor = None,
) -> JSONResponse:
    """Summaries: role, device, toolchain, kernels, number of entries, the jobs that they were frozen from."""
    with context.database.read() as session:
        page = catalog_queries.list_catalogs(session, role=role, cursor=cursor, limit=limit)
    return page_response(request, page)


@router.get(
    "/{digest}",
    summary="One catalog, complete",
    response_model=None,
    responses={
        200: {"model": schemas_catalogs.CatalogDocument, "headers": ETAG_HEADERS},
        **NOT_MODIFIED,
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_catalog(request: Request, context: ContextOf, digest: Digest) -> Response:
    """The canonical bytes: their sha256, without the member `digest`, is the digest. They never change."""
    with context.database.read() as session:
        body = catalog_queries.catalog_row(session, digest)["body"]
    return cached_response(request, body.encode(), etag=digest, cache_control=IMMUTABLE)

"""``/v1/acceptances``: replay a candidate catalog, follow it, read the verdict and the evidence."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from search.errors import InvalidInput
from tuner_service.api import kinds, schemas, schemas_catalogs
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.caching import ETAG_HEADERS, IMMUTABLE, NOT_MODIFIED, cached_response
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import json_body, problems
from tuner_service.api.idempotency import OnceOf
from tuner_service.api.pages import DEFAULT_PAGE_ITEMS, Cursor, Limit, page_response
from tuner_service.api.problems import ProblemError
from tuner_service.api.waiting import with_waiting
from tuner_service.db.queries import acceptances as acceptance_queries
from tuner_service.jobs.acceptance import accept, read_accept_request
from tuner_service.jobs.acceptance_ledger import get_acceptance, list_acceptances
from tuner_service.jobs.states import job_has_ended

router = APIRouter(prefix="/v1", tags=["catalogs"])

AcceptanceId = Annotated[
    str, Path(description="Id of an acceptance.", max_length=64, examples=["acc_00000000000000000000000000"])
]
Digest = Annotated[str, Path(description="Digest of a candidate catalog.", max_length=64, examples=["0" * 64])]
_EXAMPLES = {
    "plain": {"summary": "Four rounds, against what prod names now", "value": {}},
    "longer": {"summary": "Eight rounds, against another alias", "value": {"rounds": 8, "alias": "canary"}},
}


@router.post(
    "/catalogs/{digest}/acceptances",
    summary="Replay a candidate catalog",
    status_code=202,
    response_model=None,
    responses={
        202: {
            "model": schemas_catalogs.AcceptanceDocument,
            "description": "The acceptance was created, or had been created by the same request.",
            "headers": {"Location": {"description": "The acceptance.", "schema": {"type": "string"}}},
        },
        **problems(
            kinds.BODY_TOO_LARGE,
            kinds.NOT_FOUND,
            kinds.CONFLICT,
            kinds.IDEMPOTENCY_CONFLICT,
            kinds.NOT_READY,
            kinds.STORAGE_UNAVAILABLE,
        ),
    },
    openapi_extra=json_body("AcceptRequest", _EXAMPLES),
)
def create_acceptance(
    context: ContextOf, digest: Digest, raw: Annotated[bytes, Depends(read_body)], once: OnceOf
) -> JSONResponse:
    """Every round builds each entry, its reference, its default and the incumbent's entry anew in new processes, checks
    them against the oracle, and times them and torch alone, in balanced orders, on the device that the catalog is for.
    Accepted only when no case is worse than reference, default or incumbent by more than its own noise.

    With another toolchain than the catalog's it is a canary replay: it reports what differs, and accepts nothing."""
    request = read_accept_request(parse_object(raw) if raw.strip() else {})
    acceptance_id = accept(
        context.database,
        digest,
        request,
        devices=context.probed_devices(),
        idempotency_key=once.key,
        request_sha256=once.request_sha256,
    )
    context.runtime.wake(acceptance_id)
    with context.database.read() as session:
        document = get_acceptance(session, acceptance_id)
    headers = {"Location": f"/v1/acceptances/{acceptance_id}"}
    return JSONResponse(with_waiting(context, document), status_code=202, headers=headers)


@router.get(
    "/acceptances",
    summary="List acceptances, newest first",
    response_model=None,
    responses={200: {"model": schemas_catalogs.AcceptancePage}, **problems(kinds.STORAGE_UNAVAILABLE)},
)
def get_acceptances(
    request: Request,
    context: ContextOf,
    catalog: Annotated[str | None, Query(description="Only replays of this catalog.", max_length=64)] = None,
    state: Annotated[schemas.State | None, Query(description="Only acceptances in this state.")] = None,
    limit: Limit = DEFAULT_PAGE_ITEMS,
    cursor: Cursor = None,
) -> JSONResponse:
    """Progress, results and verdicts. Filters combine."""
    with context.database.read() as session:
        try:
            page = list_acceptances(session, catalog=catalog, state=state, cursor=cursor, limit=limit)
        except InvalidInput as error:
            raise error.under("/query") from None
    return page_response(request, {**page, "items": [with_waiting(context, one) for one in page["items"]]})


@router.get(
    "/acceptances/{acceptance_id}",
    summary="One acceptance: progress, ratios, verdict",
    response_model=None,
    responses={
        200: {"model": schemas_catalogs.AcceptanceDocument},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def read_acceptance(context: ContextOf, acceptance_id: AcceptanceId) -> JSONResponse:
    """Per case and metric the ratios of reference, default, incumbent and torch to the candidate (above 1: the
    candidate is faster), with the observed range, the class and the margin; the verdict with every reason."""
    with context.database.read() as session:
        document = get_acceptance(session, acceptance_id)
    return JSONResponse(with_waiting(context, document))


@router.get(
    "/acceptances/{acceptance_id}/evidence",
    summary="The evidence bundle, for the audit",
    response_model=None,
    responses={
        200: {"description": "Canonical JSON (docs/reference/evidence.md).", "headers": ETAG_HEADERS},
        **NOT_MODIFIED,
        **problems(kinds.NOT_FOUND, kinds.CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
)
def read_evidence(request: Request, context: ContextOf, acceptance_id: AcceptanceId) -> Response:
    """Every record with its raw samples, the catalogs, and the searches that they were frozen from. Check it with
    `python -m catalogs.audit`. 409 while the acceptance has no verdict."""
    with context.database.read() as session:
        found = acceptance_queries.evidence(session, acceptance_id)
        state = acceptance_queries.acceptance_row(session, acceptance_id)["state"]
    if found is None:
        raise ProblemError(kinds.CONFLICT, f"the acceptance is {state} and has no evidence")
    text, sha256 = found
    return cached_response(request, text.encode(), etag=sha256, cache_control=IMMUTABLE)


@router.post(
    "/acceptances/{acceptance_id}/cancel",
    summary="Cancel an acceptance",
    response_model=None,
    responses={
        200: {"model": schemas_catalogs.AcceptanceDocument},
        **problems(kinds.NOT_FOUND, kinds.CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
)
def cancel_acceptance(context: ContextOf, acceptance_id: AcceptanceId) -> JSONResponse:
    """Stops the replay at once; there is then no verdict. One that has succeeded or failed answers 409."""
    with context.database.read() as session:
        state = acceptance_queries.acceptance_row(session, acceptance_id)["state"]
    if not job_has_ended(state):
        context.runtime.cancel(acceptance_id)
    with context.database.read() as session:
        document = get_acceptance(session, acceptance_id)
    if document["state"] in ("succeeded", "failed"):
        raise ProblemError(kinds.CONFLICT, f"the acceptance has {document['state']}; it can no longer be cancelled")
    return JSONResponse(with_waiting(context, document))

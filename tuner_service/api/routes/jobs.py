"""``/v1/jobs``: start, list, follow and cancel tuning jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.sse import EventSourceResponse

from search.errors import InvalidInput
from tuner_service.api import kinds, schemas, schemas_jobs
from tuner_service.api.answers import DocumentResponse
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import REQUEST_EXAMPLES, json_body, problems
from tuner_service.api.idempotency import OnceOf
from tuner_service.api.pages import DEFAULT_PAGE_ITEMS, Cursor, Limit, page_response
from tuner_service.api.problems import ProblemError
from tuner_service.api.requests import resolve
from tuner_service.api.streams import job_events, nothing_left, parse_last_event_id
from tuner_service.api.waiting import with_waiting
from tuner_service.db.queries import claims as claim_queries
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries.job_lists import list_jobs as list_job_summaries
from tuner_service.jobs.states import job_has_ended
from tuner_service.jobs.submit import submit

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobId = Annotated[str, Path(description="Id of a job.", examples=["job_00000000000000000000000000"])]
CaseIndex = Annotated[int, Path(ge=0, le=10_000, description="Place of the case in the request, from 0.", examples=[0])]


@router.post(
    "",
    summary="Start a tuning job",
    status_code=202,
    response_model=None,
    responses={
        202: {
            "model": schemas.JobDocument,
            "description": "The job was created, or had been created by the same request.",
            "headers": {"Location": {"description": "The job.", "schema": {"type": "string"}}},
        },
        **problems(
            kinds.BODY_TOO_LARGE,
            kinds.IDEMPOTENCY_CONFLICT,
            kinds.NOT_READY,
            kinds.STORAGE_UNAVAILABLE,
        ),
    },
    openapi_extra=json_body("JobRequest", REQUEST_EXAMPLES),
)
def create_job(
    request: Request,
    context: ContextOf,
    raw: Annotated[bytes, Depends(read_body)],
    once: OnceOf,
) -> JSONResponse:
    """Enumerates every candidate of each case, rejects those that break the budget or the rules, compiles and measures
    the rest on the device, and chooses winners. Answers at once; follow `Location`, or its `/events`.

    A device that was attached once and is away is waited for (`waiting` says why); one that has never been is refused.
    Every value that is left out takes its default, and the answer's `request` says which. A bad request names every
    wrong field with what is allowed, and creates nothing."""
    resolved = resolve(context, parse_object(raw))
    job_id = submit(
        context.database,
        resolved,
        idempotency_key=once.key,
        body_sha256=once.request_sha256,
    )
    context.runtime.wake(job_id)
    return DocumentResponse(_document(context, job_id), status_code=202, headers={"Location": f"/v1/jobs/{job_id}"})


@router.get(
    "",
    summary="List jobs, newest first",
    response_model=None,
    responses={200: {"model": schemas_jobs.JobPage}, **problems(kinds.STORAGE_UNAVAILABLE)},
)
def list_jobs(
    request: Request,
    context: ContextOf,
    state: Annotated[schemas.State | None, Query(description="Only jobs in this state.")] = None,
    kernel: Annotated[str | None, Query(description="Only jobs with a case of this kernel.", max_length=128)] = None,
    device: Annotated[str | None, Query(description="Only jobs on this device: kind or id.", max_length=128)] = None,
    label: Annotated[
        str | None,
        Query(description="Only jobs with this label: `name=value`, or `name`.", max_length=400),
    ] = None,
    limit: Limit = DEFAULT_PAGE_ITEMS,
    cursor: Cursor = None,
) -> JSONResponse:
    """What each job is about and how far it is; `GET /v1/jobs/{job_id}` has its request and its cases. Filters
    combine."""
    with context.database.read() as session:
        try:
            page = list_job_summaries(
                session, state=state, kernel=kernel, device=device, label=label, cursor=cursor, limit=limit
            )
        except InvalidInput as error:
            raise error.under("/query") from None
    return page_response(request, {**page, "items": [with_waiting(context, job) for job in page["items"]]})


@router.get(
    "/{job_id}",
    summary="One job, with progress and results",
    response_model=None,
    responses={
        200: {"model": schemas.JobDocument},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_job(
    context: ContextOf,
    job_id: JobId,
    retimes: Annotated[
        bool,
        Query(description="Whether cases also have their `retimes`, of which there are many after a long search."),
    ] = False,
) -> JSONResponse:
    """State, resolved request, progress, and per case: winner, reference, default, ties, noise floor, regret and
    baselines. While the job runs, each case's `winner` is null and `best` is the best so far."""
    return DocumentResponse(_document(context, job_id, retimes=retimes))


@router.get(
    "/{job_id}/cases/{case_index}",
    summary="One case of a job, complete",
    response_model=None,
    responses={
        200: {"model": schemas_jobs.WholeCaseDocument},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_case(context: ContextOf, job_id: JobId, case_index: CaseIndex) -> JSONResponse:
    """A case as the job shows it, and `retimes`: how the untuned default was timed again and again during the search,
    which is where the noise floor comes from."""
    with context.database.read() as session:
        return DocumentResponse(job_queries.job_case_document(session, job_id, case_index))


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    response_model=None,
    responses={
        200: {"model": schemas.JobDocument},
        **problems(kinds.NOT_FOUND, kinds.CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
)
def cancel_job(context: ContextOf, job_id: JobId) -> JSONResponse:
    """Withdraws queued work at once and kills running children; what was measured stays, the rest becomes `not_run`.
    Cancelling a cancelled job changes nothing; one that has succeeded or failed answers 409."""
    with context.database.read() as session:
        state = job_queries.job_state(session, job_id)
    if not job_has_ended(state):
        context.runtime.cancel(job_id)
    document = _document(context, job_id)
    if document["state"] in ("succeeded", "failed"):
        raise ProblemError(kinds.CONFLICT, f"the job has {document['state']}; it can no longer be cancelled")
    return DocumentResponse(document)


@router.get(
    "/{job_id}/events",
    summary="Follow a job (server-sent events)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events until the job has ended; the last one is `end`.",
            "content": {EventSourceResponse.media_type: {"schema": {"type": "string"}}},
        },
        204: {"description": "The job has ended and there is nothing after `Last-Event-ID`."},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def stream_events(
    context: ContextOf,
    job_id: JobId,
    last_event_id: Annotated[
        str | None, Header(description="Id of the last event that was received; the stream goes on after it.")
    ] = None,
) -> Response:
    """One event per thing that happened to the job, in order; `id` is its sequence number and `data` its JSON.
    After a lost connection send the last id in `Last-Event-ID` (browsers do) and nothing is lost or repeated."""
    after = parse_last_event_id(last_event_id)
    if nothing_left(context, job_id, after):
        return Response(status_code=204)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventSourceResponse(job_events(context, job_id, after), headers=headers)


def _document(context: Context, job_id: str, *, retimes: bool = False) -> dict[str, Any]:
    with context.database.read() as session:
        document = job_queries.job_document(session, job_id, retimes=retimes)
        document["in_flight"] = claim_queries.in_flight(session, job_id)
    return with_waiting(context, document)

"""``/v1/prune``: retention. What has ended long ago goes, unless something frozen refers to it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from tuner_service.api import kinds, schemas_retention
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import json_body, problems
from tuner_service.db.queries.deployment import COPIES_REST, record_fact
from tuner_service.jobs.prune import prune, read_prune_request
from tuner_service.jobs.sweep import REST_SECONDS, sweep

router = APIRouter(prefix="/v1/prune", tags=["system"])

CALL_SECONDS = 10.0
"""One call works about so long: well within the patience of clients and proxies."""
_EXAMPLES = {
    "dry run": {
        "summary": "What would go if everything that ended 90 days ago did",
        "value": {"older_than": "90d", "dry_run": True},
    },
    "failed, of one team": {
        "summary": "Jobs with a label that failed or were cancelled a year ago",
        "value": {"older_than": "52w", "states": ["failed", "cancelled"], "labels": {"team": "kernels"}},
    },
}


@router.post(
    "",
    summary="Remove jobs that ended long ago",
    response_model=None,
    responses={
        200: {"model": schemas_retention.PrunedDocument},
        **problems(kinds.BODY_TOO_LARGE, kinds.STORAGE_UNAVAILABLE),
    },
    openapi_extra=json_body("PruneRequest", _EXAMPLES),
)
def prune_jobs(context: ContextOf, raw: Annotated[bytes, Depends(read_body)]) -> JSONResponse:
    """Removes jobs with their cases, trials, events, tasks and idempotency keys. A job that a catalog was frozen from
    stays and is in `kept` with what refers to it; one that is queued or running is never looked at. One call works for
    some seconds: while `complete` is false, send it again. The last one also removes `artifacts` that nothing refers to
    and nobody put or found for as long (a day at least) from where they are kept; where machines share that place, each
    of them drops the `copies` that it did not use for as long. There is no way back but a backup."""
    request = read_prune_request(parse_object(raw))
    answer = prune(context.database, request, for_seconds=CALL_SECONDS)
    if answer["complete"] and not request.dry_run:
        answer["removed"] |= _sweep(context, max(float(request.older_than_seconds), REST_SECONDS))
    return JSONResponse(answer)


def _sweep(context: Context, seconds: float) -> dict[str, int]:
    """Artifacts that went, and copies of this process's; the workers hear of it and do the same."""
    shared, own = context.runtime.shared_artifacts, context.runtime.artifact_store
    if shared is None:
        return {"artifacts": sweep(context.database, own, seconds=seconds)}
    with context.database.write() as session:
        record_fact(session, COPIES_REST, f"{seconds:g}", by="tuner prune", replace=True)
    return {
        "artifacts": sweep(context.database, shared, seconds=seconds),
        "copies": own.trim(seconds=seconds),
    }

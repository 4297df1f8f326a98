"""``/v1/jobs/{id}/trials`` and ``/v1/trials``: the trial history, every rejection included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from search.errors import InvalidInput
from search.outcome import Stage
from tuner_service.api import kinds, schemas
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import problems
from tuner_service.api.exports import csv_rows, jsonl, source_tar
from tuner_service.api.pages import DEFAULT_PAGE_ITEMS, Cursor, Limit, page_response
from tuner_service.api.problems import ProblemError
from tuner_service.api.routes.jobs import JobId
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries import trials as trial_queries

router = APIRouter(prefix="/v1", tags=["trials"])

TrialId = Annotated[str, Path(description="Id of a trial.", examples=["trl_00000000000000000000000000"])]
Sort = Literal[
    "ordinal",
    "-ordinal",
    "median_seconds",
    "-median_seconds",
    "private_scalars",
    "-private_scalars",
    "width",
    "-width",
    "score",
    "-score",
    "registers",
    "-registers",
    "spill_bytes",
    "-spill_bytes",
    "finished_at",
    "-finished_at",
]


def _filters(
    outcome: Annotated[
        Literal["pending", "measured", "checked", "rejected", "not_run"] | None,
        Query(description="Only this outcome; `checked` is how trials end on a compile-only device."),
    ] = None,
    stage: Annotated[Stage | None, Query(description="Only rejected at this stage.")] = None,
    reason: Annotated[
        str | None, Query(description="Only rejected for this reason, such as `private_budget`.", max_length=64)
    ] = None,
    kernel: Annotated[str | None, Query(description="Only cases of this kernel.", max_length=128)] = None,
    case_index: Annotated[
        int | None, Query(ge=0, le=10_000, description="Only the case at this place of the request, from 0.")
    ] = None,
    width: Annotated[int | None, Query(ge=1, le=1024, description="Only this width.")] = None,
    input_word: Annotated[
        str | None, Query(alias="input", description="Only this input word: `reload` or `cache`.", max_length=256)
    ] = None,
    is_default: Annotated[bool | None, Query(description="Only untuned defaults (true) or all others.")] = None,
    in_space: Annotated[bool | None, Query(description="Only candidates of the space (true) or outside it.")] = None,
    max_registers: Annotated[
        int | None,
        Query(ge=0, le=100_000, description="Only machine code that names at most so many registers (CUDA)."),
    ] = None,
    spills: Annotated[
        bool | None, Query(description="Only machine code that spills registers (true), or does not (CUDA).")
    ] = None,
    sort: Annotated[
        Sort, Query(description="Order; `-` before it descends, missing values come last, ties in canonical order.")
    ] = "ordinal",
) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "stage": stage,
        "reason": reason,
        "kernel": kernel,
        "case_index": case_index,
        "width": width,
        "input": input_word,
        "is_default": is_default,
        "in_space": in_space,
        "max_registers": max_registers,
        "spills": spills,
        "sort": sort,
    }


Filters = Annotated[dict[str, Any], Depends(_filters)]


def _page(context: Context, job_id: str, filters: Mapping[str, Any], cursor: str | None, limit: int) -> dict[str, Any]:
    """A page of trials whose records are JsonText."""
    with context.database.read() as session:
        job_queries.job_state(session, job_id)  # NotFound, not an empty page
        try:
            return trial_queries.trial_page(session, job_id, **filters, cursor=cursor, limit=limit)
        except InvalidInput as error:
            raise error.under("/query") from None


@router.get(
    "/jobs/{job_id}/trials",
    summary="A job's trials, filtered and sorted",
    response_model=None,
    responses={
        200: {"model": schemas.TrialPage},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def list_trials(
    request: Request,
    context: ContextOf,
    job_id: JobId,
    filters: Filters,
    limit: Limit = DEFAULT_PAGE_ITEMS,
    cursor: Cursor = None,
) -> JSONResponse:
    """Every candidate of the job: measured (on a compile-only device: checked), rejected with its numbers, or not run.
    Nothing vanishes. Filters combine; `total` counts what matches."""
    return page_response(request, _page(context, job_id, filters, cursor, limit))


@router.get(
    "/jobs/{job_id}/trials/export",
    summary="Export all matching trials (CSV or JSON lines)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Every trial that matches, in the asked order.",
            "content": {"text/csv": {}, "application/jsonl": {}},
        },
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def export_trials(
    context: ContextOf,
    job_id: JobId,
    filters: Filters,
    form: Annotated[Literal["csv", "jsonl"], Query(alias="format", description="`csv` or `jsonl`.")] = "jsonl",
) -> StreamingResponse:
    """The whole query, not a page, streamed. Lines are trials as `GET /v1/trials/{trial_id}` shows them; CSV has the
    columns that fit cells, with raw samples as JSON."""
    _page(context, job_id, filters, None, 1)  # a bad request must fail before the stream begins

    def fetch(cursor: str | None, limit: int) -> Mapping[str, Any]:
        return _page(context, job_id, filters, cursor, limit)

    rows, media_type = (csv_rows, "text/csv") if form == "csv" else (jsonl, "application/jsonl")
    headers = {"Content-Disposition": f'attachment; filename="{job_id}-trials.{form}"'}
    return StreamingResponse(rows(fetch), media_type=media_type, headers=headers)


@router.get(
    "/trials/{trial_id}",
    summary="One trial, complete",
    response_model=None,
    responses={
        200: {"model": schemas.TrialDocument},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_trial(context: ContextOf, trial_id: TrialId) -> JSONResponse:
    """Candidate, plan with demand, code facts, raw samples, correctness record, or the rejection and its numbers."""
    with context.database.read() as session:
        return JSONResponse(trial_queries.get_trial(session, trial_id))


@router.get(
    "/trials/{trial_id}/source",
    summary="A trial's source, to paste and rebuild",
    response_model=None,
    responses={
        200: {
            "model": schemas.SourceDocument,
            "description": "The source; text for `tilelang`, `c` and `header`, a tar file for `tar`.",
            "content": {"text/plain": {}, "application/x-tar": {}},
        },
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_source(
    context: ContextOf,
    trial_id: TrialId,
    form: Annotated[
        Literal["json", "tilelang", "c", "header", "tar"],
        Query(alias="format", description="`json`: everything; one text; or `tar`: the folder to build in."),
    ] = "json",
) -> Response:
    """TileLang Python text, the C text that it became, our header, and the build command. A trial that was never
    compiled (rejected at `constraints`, pending, not run) has none and answers 404."""
    with context.database.read() as session:
        sha256 = trial_queries.trial_source_sha(session, trial_id)
    if sha256 is None:
        raise ProblemError(kinds.NOT_FOUND, "this trial was never compiled, so it has no source")
    source = context.runtime.load_source(sha256)
    if source is None:
        raise ProblemError(kinds.NOT_FOUND, f"source {sha256} is no longer in the artifact store")
    document = {**vars(source), "build_command": list(source.build_command), "files": dict(source.files)}
    if form == "json":
        return JSONResponse(document)
    if form == "tar":
        headers = {"Content-Disposition": f'attachment; filename="{trial_id}.tar"'}
        return Response(source_tar(document, folder=trial_id), media_type="application/x-tar", headers=headers)
    return PlainTextResponse(document[f"{form}_text"])

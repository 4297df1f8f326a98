"""``/v1/winners``: exact lookup, a hit or an explained miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from catalogs.lookup import Hit, lookup
from catalogs.lookup import Query as Question
from search.program.library import kernels
from search.program.limits import ADMITTED_LIMITS
from tuner_service.api import kinds, schemas
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import LOOKUP_EXAMPLES, json_body, problems
from tuner_service.api.problems import ProblemError
from tuner_service.api.questions import case_of_body, case_of_parameters, question
from tuner_service.api.requests import limits_of
from tuner_service.api.winners import frozen_entries
from tuner_service.db.queries import cases as case_queries

router = APIRouter(prefix="/v1/winners", tags=["winners"])

_HIT: dict[int | str, dict[str, Any]] = {
    200: {
        "model": schemas.EntryDocument,
        "headers": {"ETag": {"description": "The entry's digest.", "schema": {"type": "string"}}},
    }
}


@router.get(
    "",
    summary="Look up the winner of exactly this key",
    response_model=None,
    responses={
        **_HIT,
        **problems(kinds.NO_WINNER, kinds.NOT_FOUND, kinds.NOT_READY, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_winner(
    context: ContextOf,
    kernel: Annotated[
        str,
        Query(
            description="Name of a built-in kernel, or of a program that was sent.",
            max_length=128,
            examples=["rms_norm"],
        ),
    ],
    dims: Annotated[
        str, Query(description="Every dim, as `name:size`.", max_length=1000, examples=["rows:64,cols:256"])
    ],
    dtypes: Annotated[
        str, Query(description="Tensor dtypes that are no defaults.", max_length=1000, examples=["x:float32"])
    ] = "",
    params: Annotated[
        str, Query(description="Param values that are no defaults.", max_length=1000, examples=["eps:1e-6"])
    ] = "",
    device: Annotated[
        str | None,
        Query(
            description="Device id, kind or identity digest; left out: the attached one.",
            max_length=128,
            examples=["cpu"],
        ),
    ] = None,
    toolchain: Annotated[
        str | None,
        Query(
            description="Toolchain fingerprint, or `any` said out loud; left out: the attached device's.",
            max_length=64,
            examples=["any"],
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        Query(
            description="A frozen catalog to look in, by alias (`prod`) or digest; left out: winners of all jobs.",
            max_length=64,
        ),
    ] = None,
    cache_context: Annotated[
        str | None,
        Query(description="How it was measured, `warm` or `cold`; left out: warm.", max_length=16, examples=["warm"]),
    ] = None,
    program_digest: Annotated[
        str | None,
        Query(
            description="Which program, where several were sent under one name: `program_digest` of an entry's key.",
            max_length=64,
        ),
    ] = None,
) -> JSONResponse:
    """The entry whose program, params, dims, dtypes, device identity, toolchain, threads, metric and cache context all
    equal the asked ones; the newest job wins, or a frozen `catalog` answers. It never guesses: otherwise 404 with the
    reason, and up to five entries, the nearest first, each with the key fields that differ as `[asked, stored]`."""
    devices = context.probed_devices()
    with context.database.read() as session:
        # a built-in kernel's name means that kernel, unless a digest says otherwise
        named = kernel in kernels() and program_digest is None
        sent = [] if named else case_queries.sent_programs(session, kernel)
    case = case_of_parameters(
        kernel=kernel,
        dims=dims,
        dtypes=dtypes,
        params=params,
        digest=program_digest,
        sent=sent,
    )
    query = question(
        case,
        device=device,
        toolchain=toolchain,
        cache_context=cache_context,
        devices=devices,
        pointer="/query",
    )
    return _answer(context, query, catalog, pointer="/query")


@router.post(
    "",
    summary="Look up the winner of a program",
    response_model=None,
    responses={
        **_HIT,
        **problems(kinds.NO_WINNER, kinds.NOT_FOUND, kinds.BODY_TOO_LARGE, kinds.NOT_READY, kinds.STORAGE_UNAVAILABLE),
    },
    openapi_extra=json_body("LookupRequest", LOOKUP_EXAMPLES),
)
def find_winner(context: ContextOf, raw: Annotated[bytes, Depends(read_body)]) -> JSONResponse:
    """The same question with the case in the body, as in a job, so that a program can be sent with it. Changes nothing.
    An entry is found under the program's name and by what the program computes, however it is written."""
    body = parse_object(raw)
    # what was tuned is found again, however large its dims: only the program's own size is limited
    limits = replace(
        limits_of(context.settings).program,
        dim_extent=ADMITTED_LIMITS.dim_extent,
        tensor_bytes=ADMITTED_LIMITS.tensor_bytes,
        points=ADMITTED_LIMITS.points,
    )
    case = case_of_body(body, limits=limits)
    query = question(
        case,
        device=body.get("device"),
        toolchain=body.get("toolchain"),
        cache_context=body.get("cache_context"),
        devices=context.probed_devices(),
        pointer="",
    )
    return _answer(context, query, body.get("catalog"), pointer="")


def _answer(context: Context, query: Question, catalog: str | None, *, pointer: str) -> JSONResponse:
    """The entry, or the problem that explains the miss."""
    if catalog is None:
        answer = context.winners.lookup(context.database, query)
    else:
        with context.database.read() as session:
            answer = lookup(frozen_entries(session, catalog, query, pointer=pointer), query)
    if isinstance(answer, Hit):
        # Not a member of the body: an entry keeps members that it does not know, and its digest would change.
        return JSONResponse(answer.entry.document(), headers={"ETag": f'"{answer.entry.digest}"'})
    misses = [
        {
            "entry": near.entry.digest,
            "differs": {name: list(pair) for name, pair in near.differs.items()},
            "job_id": near.entry.job_id,
            "trial_id": near.entry.trial_id,
        }
        for near in answer.nearest
    ]
    raise ProblemError(kinds.NO_WINNER, answer.reason, members={"reason": answer.reason, "misses": misses})

"""``/v1/winners``: exact lookup, a hit or an explained miss."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from catalogs.lookup import Hit, lookup
from tuner_service.api import kinds, schemas
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import problems
from tuner_service.api.problems import ProblemError
from tuner_service.api.winners import build_query, frozen_entries

router = APIRouter(prefix="/v1/winners", tags=["winners"])


@router.get(
    "",
    summary="Look up the winner of exactly this key",
    response_model=None,
    responses={
        200: {
            "model": schemas.EntryDocument,
            "headers": {"ETag": {"description": "The entry's digest.", "schema": {"type": "string"}}},
        },
        **problems(kinds.NO_WINNER, kinds.NOT_FOUND, kinds.NOT_READY, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_winner(
    context: ContextOf,
    kernel: Annotated[str, Query(description="Name of the kernel.", max_length=128, examples=["rms_norm"])],
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
) -> JSONResponse:
    """The entry whose program, params, dims, dtypes, device identity, toolchain, threads and metric all equal the asked
    ones; the newest job wins, or a frozen `catalog` answers. It never guesses: otherwise 404 with the reason, and up to
    five entries, the nearest first, each with the key fields that differ as `[asked, stored]`."""
    query = build_query(
        kernel=kernel,
        dims=dims,
        dtypes=dtypes,
        params=params,
        device=device,
        toolchain=toolchain,
        devices=context.probed_devices(),
    )
    with context.database.read() as session:
        if catalog is None:
            answer = context.winners.lookup(session, query)
        else:
            answer = lookup(frozen_entries(session, catalog, query), query)
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

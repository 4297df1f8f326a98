"""``/v1/artifacts``: the compiled libraries that catalogs name, so that a serving process compiles nothing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from tuner_service.api import kinds
from tuner_service.api.caching import ETAG_HEADERS, IMMUTABLE, NOT_MODIFIED, cached_response
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import problems
from tuner_service.api.problems import ProblemError

router = APIRouter(prefix="/v1/artifacts", tags=["catalogs"])

Sha256 = Annotated[str, Path(description="sha256 of a compiled library.", max_length=64, examples=["0" * 64])]


@router.get(
    "/{sha256}",
    summary="A compiled library",
    response_class=Response,
    responses={
        200: {
            "description": "The shared library.",
            "headers": ETAG_HEADERS,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **NOT_MODIFIED,
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_artifact(request: Request, context: ContextOf, sha256: Sha256) -> Response:
    """The bytes with this sha256 (`artifact.library_sha256` of a catalog's entry), verified before they are sent. They
    are machine code of one device: see the catalog's `device`."""
    data = context.runtime.load_library(sha256)
    if data is None:
        raise ProblemError(kinds.NOT_FOUND, f"the artifact store has no library with the sha256 {sha256}")
    return cached_response(request, data, etag=sha256, cache_control=IMMUTABLE, media_type="application/octet-stream")

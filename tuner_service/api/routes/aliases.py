"""``/v1/aliases``: movable names of catalogs. Promotion needs an accepted acceptance; one step leads back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse, Response

from catalogs import canonical_json, sha256_hex
from search.program.report import Report
from tuner_service.api import kinds, schemas_catalogs
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.caching import ASK_AGAIN, ETAG_HEADERS, NOT_MODIFIED, cached_response
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import json_body, problems
from tuner_service.api.idempotency import OnceOf
from tuner_service.api.pages import whole
from tuner_service.db.queries import catalogs as catalog_queries
from tuner_service.jobs.promote import check_alias, manifest_of, promote, rollback

router = APIRouter(prefix="/v1/aliases", tags=["catalogs"])

AliasName = Annotated[str, Path(description="Name of an alias.", max_length=200, examples=["prod"])]
_EXAMPLES = {"promote": {"summary": "The alias names this catalog from now on", "value": {"digest": "0" * 64}}}
_MANIFEST: dict[int | str, dict[str, Any]] = {
    200: {"model": schemas_catalogs.ManifestDocument, "headers": ETAG_HEADERS}
}


@router.get(
    "",
    summary="List aliases",
    response_model=None,
    responses={200: {"model": schemas_catalogs.AliasPage}, **problems(kinds.STORAGE_UNAVAILABLE)},
)
def list_aliases(context: ContextOf) -> JSONResponse:
    """Every alias with the catalogs that it names now, and its history."""
    with context.database.read() as session:
        names = catalog_queries.alias_names(session)
        return JSONResponse(whole([manifest_of(session, name).document() for name in names]))


@router.get(
    "/{name}",
    summary="Where an alias points",
    response_model=None,
    responses={**_MANIFEST, **NOT_MODIFIED, **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE)},
)
def get_alias(request: Request, context: ContextOf, name: AliasName) -> Response:
    """The manifest: for each device identity and toolchain the digests of its candidate and reference catalogs, the
    newest promotion first. One alias serves a mixed fleet; `history` holds earlier states."""
    return _manifest(request, context, check_alias(name, pointer="/path/name"))


@router.put(
    "/{name}",
    summary="Promote an accepted catalog",
    response_model=None,
    responses={
        **_MANIFEST,
        **problems(kinds.BODY_TOO_LARGE, kinds.NOT_FOUND, kinds.CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
    openapi_extra=json_body("PromoteRequest", _EXAMPLES),
)
def put_alias(
    request: Request, context: ContextOf, name: AliasName, raw: Annotated[bytes, Depends(read_body)]
) -> Response:
    """The alias names this candidate catalog for the catalog's device and toolchain; its entries for others stay.

    409 unless an acceptance of the catalog was accepted in which the catalog that the alias names now (if there is
    one) took part as the incumbent. What it named before stays in the history."""
    alias = check_alias(name, pointer="/path/name")
    promote(context.database, alias, _digest(parse_object(raw)))
    return _manifest(request, context, alias)


@router.post(
    "/{name}/rollback",
    summary="Go one promotion back",
    response_model=None,
    responses={
        **_MANIFEST,
        **problems(kinds.NOT_FOUND, kinds.CONFLICT, kinds.IDEMPOTENCY_CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
)
def roll_back_alias(request: Request, context: ContextOf, name: AliasName, once: OnceOf) -> Response:
    """The alias names again what it named before its last promotion. Again: one promotion further back; 409 when
    there is none. With an `Idempotency-Key` a request that is sent again goes back only once."""
    alias = check_alias(name, pointer="/path/name")
    rollback(context.database, alias, idempotency_key=once.key, request_sha256=once.request_sha256)
    return _manifest(request, context, alias)


def _manifest(request: Request, context: Context, alias: str) -> Response:
    with context.database.read() as session:
        document = manifest_of(session, alias).document()
    return cached_response(request, canonical_json(document), etag=sha256_hex(document)[:32], cache_control=ASK_AGAIN)


def _digest(body: dict[str, Any]) -> str:
    report = Report()
    report.unknown_keys(body, ("digest",))
    digest = body.get("digest")
    if not isinstance(digest, str) or len(digest) != 64:
        allowed = "the digest of a candidate catalog (GET /v1/catalogs?role=candidate)"
        report.add("/digest", digest, "not a digest", allowed)
    report.raise_if_any()
    return str(digest)

"""Exception → RFC 9457 problem: one table, used for every error that leaves the service."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from search.errors import ArtifactsUnavailable, InvalidInput
from tuner_service.api import kinds
from tuner_service.api.body import BodyTooLargeError
from tuner_service.api.kinds import ProblemKind
from tuner_service.errors import Conflict, DatabaseProblem, IdempotencyMismatch, NotFound
from tuner_service.telemetry import request_id_variable

PROBLEM_MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 50
MAX_VALUE_CHARACTERS = 300
RETRY_AFTER_SECONDS = 1
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_log = logging.getLogger("tuner.api")


class ProblemError(Exception):
    """Raise to answer a problem of a kind; ``members`` are further members of the document."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.detail, self.members, self.headers = kind, detail, dict(members or {}), dict(headers or {})
        super().__init__(detail)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to say about one exception."""

    kind: ProblemKind
    detail: str
    errors: Sequence[Mapping[str, Any]] = ()
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def respond(answer: Answer) -> JSONResponse:
    """The answer as an ``application/problem+json`` response; values are cut to a printable size."""
    document = {
        "type": answer.kind.type_path,
        "title": answer.kind.title,
        "status": answer.kind.status,
        "detail": answer.detail,
        "instance": f"urn:tuner:{request_id_variable.get() or 'unknown'}",
        "errors": [_error(error) for error in answer.errors[:MAX_ERRORS]],
        **answer.members,
    }
    headers = dict(answer.headers)
    if answer.kind.status == kinds.NOT_READY.status:
        headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return JSONResponse(
        document, status_code=answer.kind.status, media_type=PROBLEM_MEDIA_TYPE, headers=headers or None
    )


def answer_for(error: Exception) -> Answer:
    """The row of the table that an exception falls under; an unknown one is a bug of ours (500)."""
    for kind_of_error, make in _TABLE:
        if isinstance(error, kind_of_error):
            return make(error)
    return Answer(kind=kinds.INTERNAL_ERROR, detail="The service met an unexpected condition; its log has the details.")


def install(app: FastAPI) -> None:
    """Makes every handled exception of the app a problem. Unhandled ones are caught by the outermost middleware."""
    for kind_of_error, _ in _TABLE:
        app.add_exception_handler(kind_of_error, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException) and error.status_code == kinds.METHOD_NOT_ALLOWED.status:
        # The router names the methods of the first route that has this path, and a path may have several routes.
        error.headers = {"Allow": ", ".join(_methods(request))}
    answer = answer_for(error)
    if answer.kind.status >= kinds.INTERNAL_ERROR.status:
        _log.warning("answered %s: %s", answer.kind.slug, error)
    return respond(answer)


def _methods(request: Request) -> list[str]:
    """Every method that the request's path answers."""
    routes = [route for route in request.app.router.routes if not isinstance(route, Mount)]
    scopes = {method: {**request.scope, "method": method} for method in METHODS}
    found = [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]
    return found or ["GET", "HEAD"]  # no route but a mount: static files


def _invalid_input(error: Any) -> Answer:
    errors = [problem.document() for problem in error.problems]
    return Answer(kind=kinds.INVALID_REQUEST, detail=_summary(errors), errors=errors)


def _request_validation(error: Any) -> Answer:
    """FastAPI's own checks, which see only query parameters, headers and paths here: bodies are read as raw JSON."""
    errors = []
    for fault in error.errors():
        place, *path = [str(part) for part in fault["loc"]]
        field_name = "/" + "/".join([place, *path]) if path else f"/{place}"
        allowed = fault.get("ctx", {}).get("expected")
        errors.append(
            {"field": field_name, "value": fault.get("input"), "message": fault["msg"], "allowed": allowed or None}
        )
    return Answer(kind=kinds.INVALID_REQUEST, detail=_summary(errors), errors=errors)


def _http_exception(error: Any) -> Answer:
    headers = dict(error.headers or {})
    if error.status_code == kinds.NOT_FOUND.status:
        return Answer(kind=kinds.NOT_FOUND, detail="no page or operation has this path; /docs lists them all")
    if error.status_code == kinds.METHOD_NOT_ALLOWED.status:
        detail = f"this path answers only {headers.get('Allow', '')}"
        return Answer(kind=kinds.METHOD_NOT_ALLOWED, detail=detail, headers=headers)
    return Answer(kind=kinds.BAD_HTTP, detail=str(error.detail), headers=headers)


def _summary(errors: Sequence[Mapping[str, Any]]) -> str:
    first = f"{errors[0]['field'] or 'body'}: {errors[0]['message']}" if errors else "the request is not valid"
    return _cut(first) if len(errors) < 2 else f"{_cut(first)} (and {len(errors) - 1} more)"


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "field": _cut(str(error["field"])),
        "value": printable(error.get("value")),
        "message": _cut(str(error["message"])),
        "allowed": printable(error.get("allowed"), limit=20 * MAX_VALUE_CHARACTERS),
    }


def printable(value: Any, *, limit: int = MAX_VALUE_CHARACTERS) -> Any:
    """A value that JSON can carry: itself when small, else the beginning of its text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return _cut(repr(value).encode("utf-8", "backslashreplace").decode())
    if len(text) <= limit:
        return value
    return (value if isinstance(value, str) else text)[:limit] + "…"


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 2 * MAX_VALUE_CHARACTERS else text[: 2 * MAX_VALUE_CHARACTERS] + "…"


_TABLE: tuple[tuple[type[Exception], Callable[[Any], Answer]], ...] = (
    (
        ProblemError,
        lambda error: Answer(kind=error.kind, detail=error.detail, members=error.members, headers=error.headers),
    ),
    (InvalidInput, _invalid_input),
    (RequestValidationError, _request_validation),
    (BodyTooLargeError, lambda error: Answer(kind=kinds.BODY_TOO_LARGE, detail=str(error))),
    (NotFound, lambda error: Answer(kind=kinds.NOT_FOUND, detail=str(error))),
    (Conflict, lambda error: Answer(kind=kinds.CONFLICT, detail=str(error), members=error.members)),
    (IdempotencyMismatch, lambda error: Answer(kind=kinds.IDEMPOTENCY_CONFLICT, detail=str(error))),
    (ArtifactsUnavailable, lambda error: Answer(kind=kinds.STORAGE_UNAVAILABLE, detail=str(error))),
    (DatabaseProblem, lambda error: Answer(kind=kinds.STORAGE_UNAVAILABLE, detail=str(error))),
    (HTTPException, _http_exception),
)

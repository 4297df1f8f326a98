"""Strong ETags: what is frozen is cached for ever, what moves is asked for again and answered with 304."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

IMMUTABLE = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
ETAG_HEADERS: dict[str, Any] = {
    "ETag": {"description": "Send it in `If-None-Match`: 304 while nothing changed.", "schema": {"type": "string"}},
    "Cache-Control": {"description": "How long a copy may be used.", "schema": {"type": "string"}},
}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "It is what `If-None-Match` names."}}


def cached_response(
    request: Request, body: bytes, *, etag: str, cache_control: str, media_type: str = "application/json"
) -> Response:
    """The body with its ETag, or 304 without it when the client has it. ``etag`` comes without its quotes."""
    headers = {"ETag": f'"{etag}"', "Cache-Control": cache_control}
    if request.method in ("GET", "HEAD") and _has(request.headers.get("if-none-match"), f'"{etag}"'):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _has(header: str | None, quoted: str) -> bool:
    """Whether ``If-None-Match`` names the tag (RFC 9110: weak comparison, or ``*``)."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or quoted in tags

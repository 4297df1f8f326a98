"""Lists come in pages: ``limit`` and an opaque ``cursor`` in, ``next`` and a ``Link`` header out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request

from tuner_service.api.answers import DocumentResponse

DEFAULT_PAGE_ITEMS = 50
MAX_PAGE_ITEMS = 1000

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_ITEMS, description="Most items in this page.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="`next` of the page before, with the same filters and sort.",
    ),
]


def page_response(request: Request, page: Mapping[str, Any]) -> DocumentResponse:
    """A page as JSON, with the address of the next one in ``Link`` (RFC 8288)."""
    headers = {}
    if page["next"] is not None:
        query = [(k, v) for k, v in request.query_params.multi_items() if k != "cursor"]
        target = f"{request.url.path}?{urlencode([*query, ('cursor', page['next'])])}"
        headers["Link"] = f'<{target}>; rel="next"'
    return DocumentResponse(dict(page), headers=headers)


def whole(items: list[Any], **members: Any) -> dict[str, Any]:
    """A list that always fits one page."""
    return {"items": items, "next": None, "total": len(items), **members}

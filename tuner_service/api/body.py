"""A request's body: its bytes within the size limit, then strict JSON."""

from __future__ import annotations

from fastapi import Request

from tuner_service.strict_json import parse_object

__all__ = ["BodyTooLargeError", "parse_object", "read_body"]


class BodyTooLargeError(Exception):
    """The body holds more than ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the request body holds more than {limit_bytes} bytes")


async def read_body(request: Request) -> bytes:
    """The raw body. The size limit is enforced while it streams in, by the middleware."""
    return await request.body()

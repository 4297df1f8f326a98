"""The ``Idempotency-Key`` header of requests that make something: the same request again makes nothing new."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request

from search.errors import InvalidInput, Problem
from tuner_service.api.body import read_body

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_JOBS = "/v1/jobs"


@dataclass(frozen=True, kw_only=True)
class Once:
    """The key of a request, if it has one, and the digest that tells this request from others."""

    key: str | None
    request_sha256: str


def _once(
    request: Request,
    raw: Annotated[bytes, Depends(read_body)],
    idempotency_key: Annotated[
        str | None,
        Header(description="Up to 255 printable characters. The same key and request again: the same answer."),
    ] = None,
) -> Once:
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        problem = Problem(
            field="/header/Idempotency-Key",
            value=idempotency_key,
            message="this is not a usable key",
            allowed="1 to 255 printable ASCII characters without spaces",
        )
        raise InvalidInput([problem])
    path = request.url.path
    # jobs were the first to have keys, and are known by their bodies alone
    subject = b"" if path == _JOBS else f"{request.method} {path}\n".encode()
    return Once(key=idempotency_key, request_sha256=hashlib.sha256(subject + raw).hexdigest())


OnceOf = Annotated[Once, Depends(_once)]

"""AWS Signature Version 4 of one request with its whole body: the headers that prove who sends it.

After "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" of the Amazon S3 API
reference, whose examples are the tests.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Who signs. ``session_token`` belongs to temporary keys."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def quoted_path(path: str) -> str:
    """A path as it is signed and sent: every byte but letters, digits, ``-_.~`` and ``/`` percent-encoded, once."""
    return quote(path, safe="/-_.~")


def quoted_query(parameters: Mapping[str, str]) -> str:
    """A query as it is signed and sent: sorted, and every byte but letters, digits and ``-_.~`` percent-encoded."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(parameters[name], safe='-_.~')}" for name in sorted(parameters))


def signed_headers(
    credentials: Credentials,
    *,
    method: str,
    host: str,
    path: str,
    region: str,
    body: bytes,
    moment: datetime,
    headers: Mapping[str, str] | None = None,
    query: str = "",
) -> dict[str, str]:
    """The headers to send: those given, the date, the body's sha256 and ``authorization``.

    ``path`` is quoted already (:func:`quoted_path`), and so is ``query`` (:func:`quoted_query`). ``moment`` has a
    time zone.
    """
    stamp = moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    body_sha256 = hashlib.sha256(body).hexdigest()
    sent = {name.lower(): value.strip() for name, value in (headers or {}).items()}
    sent |= {"host": host, "x-amz-content-sha256": body_sha256, "x-amz-date": stamp}
    if credentials.session_token is not None:
        sent["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    request = "\n".join([method, path, query, lines, names, body_sha256])
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    message = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, message.encode(), "sha256").hexdigest()
    sent["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return sent

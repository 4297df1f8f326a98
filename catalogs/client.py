"""What is fetched from a service: manifests, catalogs and compiled libraries, over plain ``urllib``.

Whatever the service sends is judged: status, size, time, JSON, digest. Anything else than what was promised is a
SourceError, and nothing of it reaches the store.
"""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs import fields as check
from catalogs.catalog import Catalog
from catalogs.deadline import opener
from catalogs.errors import FormatError, QueryError, SourceError
from catalogs.manifest import Manifest, alias_name

MANIFEST_LIMIT_BYTES = 4 << 20
CATALOG_LIMIT_BYTES = 1 << 30
ARTIFACT_LIMIT_BYTES = 256 << 20
STEP_TIMEOUT_SECONDS = 10.0
"""For connecting, and for each wait for more bytes."""
WHOLE_TIMEOUT_SECONDS = 120.0
"""For one answer from first to last byte, so that a trickle cannot hold a caller."""
_CHUNK_BYTES = 1 << 16
_NOT_MODIFIED = 304


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """An alias's manifest; None: it has not changed since the ETag."""

    manifest: Manifest | None
    etag: str | None


class Source:
    """An alias of a service: ``https://HOST/v1/aliases/NAME``. Raises QueryError for any other URL."""

    def __init__(
        self,
        url: str,
        *,
        step_timeout_seconds: float = STEP_TIMEOUT_SECONDS,
        whole_timeout_seconds: float = WHOLE_TIMEOUT_SECONDS,
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError as error:
            raise QueryError(f"source: {check.shown(url)} is not a URL ({error})") from None
        base, mark, name = parts.path.rpartition("/v1/aliases/")
        if parts.scheme not in ("http", "https") or not parts.netloc or not mark or parts.query or parts.fragment:
            raise QueryError(f"source: expected http(s)://HOST/v1/aliases/NAME, got {check.shown(url)}")
        try:
            self.alias = alias_name(name)
        except FormatError as error:
            raise QueryError(f"source: {error}") from None
        self.url = url
        self.base = f"{parts.scheme}://{parts.netloc}{base}/v1"
        self.step_timeout_seconds = step_timeout_seconds
        self.whole_timeout_seconds = whole_timeout_seconds

    def manifest(self, *, etag: str | None = None) -> Fetched:
        """Where the alias points now. With the ETag of the last answer, an unchanged one is not sent again."""
        headers = {"If-None-Match": etag} if etag else {}
        status, answer, body = self._get(self.url, MANIFEST_LIMIT_BYTES, headers)
        if status == _NOT_MODIFIED:
            if etag is None:
                raise SourceError(f"{self.url}: answered 'not modified' to a first request")
            return Fetched(manifest=None, etag=etag)
        try:
            manifest = Manifest.from_bytes(body, name="manifest")
        except FormatError as error:
            raise SourceError(f"{self.url}: {error}") from None
        if manifest.alias != self.alias:
            raise SourceError(f"{self.url}: sent the manifest of {manifest.alias!r}")
        return Fetched(manifest=manifest, etag=answer.get("ETag"))

    def catalog(self, digest: str) -> Catalog:
        """The catalog of that digest, verified."""
        url = f"{self.base}/catalogs/{check.a_sha256(digest, 'digest')}"
        _, _, body = self._get(url, CATALOG_LIMIT_BYTES, {})
        try:
            return Catalog.from_bytes(body, digest=digest)
        except FormatError as error:
            raise SourceError(f"{url}: {error}") from None

    def artifact(self, sha256: str) -> bytes:
        """The compiled library of that sha256, verified."""
        url = f"{self.base}/artifacts/{check.a_sha256(sha256, 'artifact')}"
        _, _, body = self._get(url, ARTIFACT_LIMIT_BYTES, {})
        actual = hashlib.sha256(body).hexdigest()
        if actual != sha256:
            raise SourceError(f"{url}: sent bytes with the sha256 {actual}")
        return body

    def post_job(self, body: bytes, *, idempotency_key: str) -> int:
        """Ask the service for a tuning job; the HTTP status it answered. Raises SourceError when it is away."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key}
        request = urllib.request.Request(f"{self.base}/jobs", data=body, headers=headers, method="POST")  # noqa: S310
        ends = time.monotonic() + self.whole_timeout_seconds
        try:
            # a redirected POST would be sent on as a GET, and its answer taken for a job
            with opener(ends, redirects=False).open(request, timeout=self.step_timeout_seconds) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SourceError(f"{request.full_url}: {self._words(error, ends)}") from None

    def _get(self, url: str, limit_bytes: int, headers: Mapping[str, str]) -> tuple[int, Any, bytes]:
        request = urllib.request.Request(url, headers={"Accept": "application/json", **headers})  # noqa: S310
        ends = time.monotonic() + self.whole_timeout_seconds
        try:
            with opener(ends, redirects=True).open(request, timeout=self.step_timeout_seconds) as answer:
                return answer.status, answer.headers, self._body(answer, url, limit_bytes)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_MODIFIED:
                    return error.code, error.headers, b""
                raise SourceError(f"{url}: answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SourceError(f"{url}: {self._words(error, ends)}") from None

    def _body(self, answer: Any, url: str, limit_bytes: int) -> bytes:
        chunks, size = [], 0
        while chunk := answer.read1(_CHUNK_BYTES):
            size += len(chunk)
            if size > limit_bytes:
                raise SourceError(f"{url}: more than {limit_bytes} bytes")
            chunks.append(chunk)
        promised = answer.headers.get("Content-Length")
        if promised is not None and promised != str(size):
            raise SourceError(f"{url}: cut off after {size} of {promised} bytes")
        return b"".join(chunks)

    def _words(self, error: Exception, ends: float) -> str:
        if time.monotonic() >= ends:
            return f"not all there after {self.whole_timeout_seconds:g} seconds"
        return str(getattr(error, "reason", None) or error) or type(error).__name__

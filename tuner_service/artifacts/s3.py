"""Shared artifacts in a bucket of Amazon S3, or of anything that speaks as it does: GET, PUT, DELETE, and lists.

Settings are the variables that every S3 client reads: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_SESSION_TOKEN``, ``AWS_REGION`` (or ``AWS_DEFAULT_REGION``), ``AWS_ENDPOINT_URL_S3`` (or ``AWS_ENDPOINT_URL``).
"""

from __future__ import annotations

import html
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx

from search.errors import ArtifactsUnavailable, InvalidInput, Problem
from tuner_service.artifacts.sigv4 import Credentials, quoted_path, quoted_query, signed_headers

TRIES = 4
FIRST_PAUSE_SECONDS = 0.2
"""After the first failure; each further one doubles it."""
TIMEOUT_SECONDS = 30.0
LIST_BYTES = 16 << 20
"""A list has at most a thousand names."""
_CONTENTS = re.compile(r"<Contents>.*?</Contents>", re.DOTALL)
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class S3Blobs:
    """``search.lowering.blobs.Blobs`` in a bucket. Objects are put whole, so nobody ever sees half of one."""

    def __init__(
        self, url: str, environment: Mapping[str, str], *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """``url``: ``s3://bucket/prefix``. InvalidInput when the environment lacks a key, or the endpoint is no URL."""
        parts = urlsplit(url)
        self._bucket, self._prefix, self._pause = parts.netloc, parts.path.strip("/"), pause
        self._place = url
        self._region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._credentials = Credentials(
            access_key=_required(environment, "AWS_ACCESS_KEY_ID"),
            secret_key=_required(environment, "AWS_SECRET_ACCESS_KEY"),
            session_token=environment.get("AWS_SESSION_TOKEN") or None,
        )
        self._base, self._root = self._address(
            environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        )
        self._host = urlsplit(self._base).netloc
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False)

    def get(self, name: str, *, limit_bytes: int) -> bytes | None:
        """See ``Blobs.get``."""
        return self._tried("GET", name, b"", limit_bytes)

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """See ``Blobs.put``."""
        for name, data in blobs.items():
            self._tried("PUT", name, data, 0)

    def resting(self, kind: str, *, seconds: float) -> Iterator[str]:
        """See ``Blobs.resting``; by the bucket's clock and ours."""
        for name, modified in self._listed(f"{kind}/"):
            if time.time() - modified >= seconds:
                yield name

    def remove(self, names: Sequence[str], *, seconds: float) -> int:
        """See ``Blobs.remove``. Whoever puts one between the look and the removal loses it, as to a bad disk."""
        removed = 0
        for name in names:
            if any(time.time() - modified >= seconds for found, modified in self._listed(name) if found == name):
                self._tried("DELETE", name, b"", 0)
                removed += 1
        return removed

    def _listed(self, beginning: str) -> Iterator[tuple[str, float]]:
        """Names that begin so, and when each was put, in seconds since 1970."""
        root = f"{self._prefix}/" if self._prefix else ""
        query = {"list-type": "2", "prefix": root + beginning}
        while True:
            data = self._tried("GET", "", b"", LIST_BYTES, query=query)
            if data is None:
                raise ArtifactsUnavailable(f"the artifact store {self._place}: no list of what begins with {beginning}")
            text = data.decode("utf-8", "replace")
            for one in _CONTENTS.findall(text):
                key, modified = _tag(one, "Key"), _tag(one, "LastModified")
                if key is None or modified is None or not key.startswith(root):
                    continue
                yield key.removeprefix(root), datetime.fromisoformat(modified).timestamp()
            token = _tag(text, "NextContinuationToken")
            if token is None:
                return
            query["continuation-token"] = token

    def close(self) -> None:
        """See ``Blobs.close``."""
        self._client.close()

    def _tried(
        self, method: str, name: str, body: bytes, limit_bytes: int, *, query: Mapping[str, str] | None = None
    ) -> bytes | None:
        """The request, again after a pause while the service is busy or not to be reached."""
        pause_seconds = FIRST_PAUSE_SECONDS
        for left in reversed(range(TRIES)):
            try:
                return self._asked(method, name, body, limit_bytes, quoted_query(query or {}))
            except _BusyError as busy:
                if left == 0:
                    raise ArtifactsUnavailable(f"the artifact store {self._place}: {method} {name}: {busy}") from None
            self._pause(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads clients, no secret
            pause_seconds *= 2
        raise AssertionError("unreachable")

    def _asked(self, method: str, name: str, body: bytes, limit_bytes: int, query: str) -> bytes | None:
        """Without a name the bucket itself is asked."""
        path = quoted_path(f"{self._root}/{self._prefix}/{name}" if self._prefix and name else f"{self._root}/{name}")
        headers = signed_headers(
            self._credentials,
            method=method,
            host=self._host,
            path=path,
            region=self._region,
            body=body,
            moment=datetime.now(UTC),
            query=query,
        )
        try:
            request = self._client.build_request(
                method, self._base + path + (f"?{query}" if query else ""), headers=headers, content=body
            )
            answer = self._client.send(request, stream=True)
            try:
                data = self._body(answer, limit_bytes if answer.status_code == httpx.codes.OK else 4096)
            finally:
                answer.close()
        except httpx.HTTPError as error:
            raise _BusyError(f"{type(error).__name__}: {error}") from None
        status = answer.status_code
        if status in _AGAIN:
            raise _BusyError(f"status {status}")
        if status == httpx.codes.OK:
            return data
        if method == "DELETE" and status == httpx.codes.NO_CONTENT:
            return None
        if method == "GET" and status == httpx.codes.NOT_FOUND and b"NoSuchBucket" not in (data or b""):
            return None
        said = " ".join((data or b"").decode("utf-8", "replace").split())[:300]
        raise ArtifactsUnavailable(f"the artifact store {self._place}: {method} {name}: status {status}: {said}")

    def _body(self, answer: httpx.Response, limit_bytes: int) -> bytes | None:
        """At most so many bytes; None when there are more."""
        data = bytearray()
        for chunk in answer.iter_raw():
            data += chunk
            if len(data) > limit_bytes:
                return None
        return bytes(data)

    def _address(self, endpoint: str) -> tuple[str, str]:
        """Where requests go, and what every path begins with: the bucket, at an endpoint of one's own."""
        if not endpoint:
            return f"https://{self._bucket}.s3.{self._region}.amazonaws.com", ""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            message = "not the address of an S3 service"
            problem = Problem(field="AWS_ENDPOINT_URL", value=endpoint, message=message, allowed="https://HOST:PORT")
            raise InvalidInput([problem])
        return f"{parts.scheme}://{parts.netloc}", f"/{self._bucket}"


class _BusyError(Exception):
    """The service cannot be reached, or says that it is busy: worth another try."""


def _tag(text: str, name: str) -> str | None:
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return html.unescape(found[1]) if found else None


def _required(environment: Mapping[str, str], variable: str) -> str:
    value = environment.get(variable)
    if not value:
        message = "artifacts are kept in an S3 bucket (TUNER_ARTIFACTS), so its keys are needed; set this variable"
        raise InvalidInput([Problem(field=variable, value=None, message=message)])
    return value

"""An S3 service as far as ours asks for it: whole objects, lists, removal; every signature recomputed from what came.

Written from the S3 reference, not from our client, so that the two check each other.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "AKIDTEST", "a secret of the test", "eu-test-1", "artifacts"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request,\s*"
    r"SignedHeaders=([^,]+),\s*Signature=(\w{64})"
)


class S3Server:
    """One bucket in memory. ``failures`` holds statuses that the next requests get instead of an answer."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, float] = {}
        self.failures: list[int] = []
        self.requests: list[str] = []
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """What a client reads."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": self.url,
        }


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Runs one on a free port of loopback."""
    service = S3Server()

    class Handler(_Handler):
        server_state = service

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = self._accepted()
        if body is None:
            return
        if "?" in self.path:
            self._answer(200, self._list())
            return
        found = self.server_state.objects.get(self.path)
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, found)

    def do_PUT(self) -> None:
        body = self._accepted()
        if body is not None:
            self.server_state.objects[self.path] = body
            self.server_state.modified[self.path] = time.time()
            self._answer(200, b"")

    def do_DELETE(self) -> None:
        if self._accepted() is not None:
            self.server_state.objects.pop(self.path, None)
            self._answer(204, b"")

    def _list(self) -> bytes:
        """Version 2, two names a page."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        assert query["list-type"] == "2"
        root = f"/{BUCKET}/"
        found = sorted(key for key in self.server_state.objects if key.startswith(root + query["prefix"]))
        found = [key for key in found if key > query.get("continuation-token", "")]
        rows = ""
        for key in found[:2]:
            moment = datetime.fromtimestamp(self.server_state.modified[key], UTC).isoformat(timespec="milliseconds")
            stamp = moment.replace("+00:00", "Z")
            name = escape(key.removeprefix(root))
            rows += f"<Contents><Key>{name}</Key><LastModified>{stamp}</LastModified><Size>1</Size></Contents>"
        if len(found) > 2:
            rows += f"<NextContinuationToken>{escape(found[1])}</NextContinuationToken>"
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()

    def _accepted(self) -> bytes | None:
        """The body of a request that is to be answered; None after one that was refused."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server_state.requests.append(f"{self.command} {self.path}")
        if self.server_state.failures:
            self._answer(self.server_state.failures.pop(0), b"<Error><Code>SlowDown</Code></Error>")
        elif (refusal := self._refusal(body)) is not None:
            self._answer(403, f"<Error><Code>{refusal}</Code></Error>".encode())
        elif not self.path.startswith(f"/{BUCKET}/"):
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        else:
            return body
        return None

    def _refusal(self, body: bytes) -> str | None:
        found = _AUTHORIZATION.fullmatch(self.headers.get("Authorization") or "")
        if found is None:
            return "AccessDenied"
        access_key, date, region, signed, signature = found.groups()
        if (access_key, region) != (ACCESS_KEY, REGION):
            return "InvalidAccessKeyId"
        if self.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        names = signed.split(";")
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names) or names != sorted(names):
            return "AccessDenied"
        path, _, query = self.path.partition("?")
        canonical = f"{self.command}\n{path}\n{query}\n"
        for name in names:
            canonical += f"{name}:{self.headers[name].strip()}\n"
        canonical += f"\n{signed}\n{self.headers['x-amz-content-sha256']}"
        stamp = self.headers["x-amz-date"]
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{date}/{region}/s3/aws4_request\n"
        to_sign += hashlib.sha256(canonical.encode()).hexdigest()
        key = ("AWS4" + SECRET_KEY).encode()
        for part in (date, region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        expected = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
        return None if hmac.compare_digest(expected, signature) else "SignatureDoesNotMatch"

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: pytest's output is for its own words."""

"""What every request passes through, outermost first: id and access log, host and origin checks, body limit."""

from __future__ import annotations

import logging
import re
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner_service.api import kinds
from tuner_service.api.body import BodyTooLargeError
from tuner_service.api.problems import Answer, answer_for, respond
from tuner_service.loopback import LOOPBACK_NAMES, is_loopback
from tuner_service.metrics import count_request
from tuner_service.telemetry import accept_request_id, request_id_variable

_access = logging.getLogger("tuner.access")
_log = logging.getLogger("tuner.api")
CLIENT_CLOSED_REQUEST = 499
"""Status in the access log of a request whose client went away before the answer (as nginx writes it)."""
DRAINED_BYTES = 32 << 20
"""The largest body that is read to its end only to be refused."""
LOGGED_IDS = ("job_id", "trial_id", "acceptance_id", "device_id")
_MADE = re.compile(r"/v1/(job|acceptance)s/([a-z0-9_]{1,40})")
"""Location of what a request made."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestLog:
    """Gives each request an id (``X-Request-ID``), logs its end, and turns an unhandled exception into a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = accept_request_id(Headers(scope=scope).get("x-request-id"))
        token = request_id_variable.set(request_id)
        began = time.perf_counter()
        status, made = 0, None

        async def send_with_id(message: Message) -> None:
            nonlocal status, made
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Cache-Control", "no-store")
                made = _MADE.fullmatch(headers.get("location", ""))
            await send(message)

        try:
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:
                status = CLIENT_CLOSED_REQUEST  # nobody is left to answer, and nothing went wrong here
            except Exception as error:
                _log.exception("unhandled exception")
                if status != 0:
                    raise  # the answer has begun; only cutting the connection tells the client
                await respond(answer_for(error))(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - began
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(seconds, 6),
                **_ids(scope, made),
            }
            _access.info("request", extra=fields)
            count_request(scope["method"], _route(scope), status, seconds)
            request_id_variable.reset(token)


def _ids(scope: Scope, made: re.Match[str] | None) -> dict[str, str]:
    """What the request was about: the ids in its path, and that of what it made."""
    named = scope.get("path_params", {})
    ids = {name: str(named[name])[:80] for name in LOGGED_IDS if name in named}
    return ids if made is None else {**ids, f"{made[1]}_id": made[2]}


def _route(scope: Scope) -> str | None:
    """The template of the route that took the request; None when none did."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None


class LoopbackOnly:
    """Refuses a ``Host`` that is no loopback name (DNS rebinding) and browsers' requests from other origins.

    There are no API keys yet, so whoever reaches the service is trusted; these two keep foreign web pages out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            return  # there are none; closing without accepting answers 403
        if scope["type"] == "http":
            refusal = _refusal(Headers(scope=scope), scope["method"])
            if refusal is not None:
                await respond(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _refusal(headers: Headers, method: str) -> Answer | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1:
        return Answer(kind=kinds.BAD_HTTP, detail="a request must carry exactly one Host header")
    name = _host_name(hosts[0])
    if name is None or not is_loopback(name):
        detail = f"Host is {hosts[0]!r}; this service answers to {', '.join(LOOPBACK_NAMES)}"
        return Answer(kind=kinds.HOST_NOT_ALLOWED, detail=detail)
    origin = headers.get("origin")
    if origin is not None:
        if origin.partition("://")[2] != hosts[0]:
            return Answer(kind=kinds.CROSS_ORIGIN, detail=f"the page's origin {origin!r} is not this service")
    elif method not in SAFE_METHODS and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return Answer(kind=kinds.CROSS_ORIGIN, detail="a browser says that this request comes from another site")
    return None


def _host_name(host: str) -> str | None:
    """The name in a Host header, without port and brackets, in lower case; None when it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    malformed = parts.netloc != host or parts.username is not None or parts.path or parts.query or parts.fragment
    return None if malformed else parts.hostname


class BodyLimit:
    """Stops a body that is larger than ``limit_bytes`` as soon as it is known, also one without a length.

    What is left of one within ``DRAINED_BYTES`` is read and dropped before the answer: a client that writes its whole
    body first would find the connection reset, and never learn what was wrong.
    """

    def __init__(self, app: ASGIApp, *, limit_bytes: int) -> None:
        self.app, self.limit_bytes = app, limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length")
        if length is not None and length.isascii() and length.isdigit() and int(length[:20]) > self.limit_bytes:
            if int(length[:20]) <= DRAINED_BYTES and "expect" not in Headers(scope=scope):
                await _drain(receive)
            await respond(answer_for(BodyTooLargeError(self.limit_bytes)))(scope, receive, send)
            return
        received_bytes = 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self.limit_bytes:
                raise BodyTooLargeError(self.limit_bytes)
            return message

        await self.app(scope, counted, send)


async def _drain(receive: Receive) -> None:
    """Reads a body to its end, keeping nothing of it."""
    while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
        pass

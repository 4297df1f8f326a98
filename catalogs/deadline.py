"""HTTP connections that end by a moment, whatever the other side sends: a byte now and then holds nobody.

urllib's timeout is for each wait alone, so that headers, chunk sizes or "100 Continue" that trickle go on for ever.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import time
import urllib.request
from typing import Any


def opener(ends: float, *, redirects: bool) -> urllib.request.OpenerDirector:
    """An opener of http and https whose every answer must be there by ``ends`` (``time.monotonic``); reading later
    raises TimeoutError. ``redirects``: followed, to http and https only; else they are answers."""
    made = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(),
        _Http(ends),
        _Https(ends),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ]
    if redirects:
        handlers.append(urllib.request.HTTPRedirectHandler())
    for handler in handlers:
        made.add_handler(handler)  # and no handler of files, ftp or data: a redirect cannot reach them
    return made


class _Http(urllib.request.HTTPHandler):
    def __init__(self, ends: float) -> None:
        super().__init__()
        self._ends = ends

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_Connection, ends=self._ends), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, ends: float) -> None:
        super().__init__()
        self._ends = ends

    def https_open(self, req: urllib.request.Request) -> Any:
        connection: Any = functools.partial(_SecureConnection, ends=self._ends)
        return self.do_open(connection, req)


class _Connection(http.client.HTTPConnection):
    def __init__(self, *args: Any, ends: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.response_class = functools.partial(_Response, ends=ends)  # type: ignore[assignment]


class _SecureConnection(http.client.HTTPSConnection):
    def __init__(self, *args: Any, ends: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.response_class = functools.partial(_Response, ends=ends)  # type: ignore[assignment]


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, ends: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Timed(self.fp.detach(), sock, ends))


class _Timed(io.RawIOBase):
    """What a socket sends, up to a moment. Every wait is the socket's own timeout at the longest, and what is left."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, ends: float) -> None:
        self._raw, self._socket, self._ends = raw, sock, ends
        self._step = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("not all there in time")
        self._socket.settimeout(left if self._step is None else min(self._step, left))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()

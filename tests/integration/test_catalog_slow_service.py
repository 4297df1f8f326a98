"""A service that sends a byte now and then, wherever in its answer: a caller is let go when its time is over."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from catalogs import SourceError
from catalogs.client import Source

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TRICKLES = {
    "a status line": (b"", b"H"),
    "a header": (OK, b"X"),
    "headers": (OK, b"X: 1\r\n"),
    "one more 100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a chunk's size": (CHUNKED, b"0"),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "a trailer": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X"),
    "a body": (OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "an error's headers": (b"HTTP/1.1 503 Busy\r\n", b"X"),
}
BEFORE_A_JOB_IS_KNOWN = ("a status line", "a header", "one more 100 Continue", "an error's headers")


@contextlib.contextmanager
def sending(first: bytes, then: bytes) -> Iterator[Source]:
    """A source that sends ``first``, and ``then`` again and again."""
    closing = threading.Event()

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(first)
                while not closing.wait(0.01):
                    connection.sendall(then)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/aliases/prod"
        try:
            yield Source(url, step_timeout_seconds=5.0, whole_timeout_seconds=0.3)
        finally:
            closing.set()
            thread.join()


@pytest.mark.parametrize("what", TRICKLES)
def test_a_trickle_ends_when_the_whole_time_is_over(what: str) -> None:
    with sending(*TRICKLES[what]) as source, pytest.raises(SourceError, match=r"not all there after 0\.3 seconds"):
        source.manifest()


@pytest.mark.parametrize("what", BEFORE_A_JOB_IS_KNOWN)
def test_a_miss_is_not_held_by_a_trickle(what: str) -> None:
    with sending(*TRICKLES[what]) as source, pytest.raises(SourceError, match="not all there after"):
        source.post_job(b"{}", idempotency_key="k")


def test_a_redirected_job_is_no_job() -> None:
    """Sent on it would be a GET, whose 200 would be taken for a job that was queued."""
    answer = b"HTTP/1.1 302 Found\r\nLocation: /v1/aliases/prod\r\nContent-Length: 0\r\n\r\n"
    with sending(answer, b"") as source:
        assert source.post_job(b"{}", idempotency_key="k") == 302

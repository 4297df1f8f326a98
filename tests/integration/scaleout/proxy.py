"""A TCP proxy that can be paused, as a network that swallows what is sent, or cut, as one that resets connections."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self

POLL_SECONDS = 0.05
CHUNK_BYTES = 1 << 16


class PausableProxy:
    """Listens on a loopback port and forwards to another while it is not paused. A context manager."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._flows, self._closing = threading.Event(), threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._flows.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def pause(self) -> None:
        """From now on nothing arrives anywhere, and nobody is told."""
        self._flows.clear()

    def resume(self) -> None:
        """Everything flows again, what was sent meanwhile first."""
        self._flows.set()

    def cut(self) -> None:
        """Every connection ends at once."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            if not select.select([self._listener], [], [], POLL_SECONDS)[0] or not self._flows.is_set():
                self._closing.wait(0 if self._flows.is_set() else POLL_SECONDS)
                continue
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            self._run(lambda near=near, far=far: self._forward(near, far))

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            while not self._closing.is_set():
                if not self._flows.wait(POLL_SECONDS):
                    continue
                for source in select.select([near, far], [], [], POLL_SECONDS)[0]:
                    data = source.recv(CHUNK_BYTES) if self._flows.is_set() else None
                    if data == b"":
                        return
                    if data:
                        (far if source is near else near).sendall(data)
        with self._lock:
            self._sockets -= {near, far}

    def _run(self, target: object) -> None:
        thread = threading.Thread(target=target, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

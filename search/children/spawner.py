"""One thread that starts every child of this process.

PDEATHSIG is sent when the *thread* that forked a child ends, not the process. Measuring is driven by short-lived
threads, so a child started from one of them would be killed in the middle of its life. This thread never ends before
the process does.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future

Start = Callable[[], "subprocess.Popen[bytes]"]


class Spawner:
    """Runs process starts on one daemon thread that lives as long as the process."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Start, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._owner_pid = 0

    def start(self, start: Start) -> subprocess.Popen[bytes]:
        """Call ``start`` on the spawning thread and give its process; what it raises is raised here."""
        with self._lock:
            if self._thread is None or self._owner_pid != os.getpid():  # a fork leaves the thread behind
                self._requests = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._serve, name="child-spawner", daemon=True)
                self._owner_pid = os.getpid()
                self._thread.start()
            requests = self._requests
        answer: Future[subprocess.Popen[bytes]] = Future()
        requests.put((start, answer))
        return answer.result()

    def _serve(self) -> None:
        requests = self._requests
        while True:
            start, answer = requests.get()
            try:
                answer.set_result(start())
            except BaseException as error:
                answer.set_exception(error)


SPAWNER = Spawner()

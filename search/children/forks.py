"""Foreign code in a child may start no processes: who tries is refused, and counted. Child side, standard library."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import struct
import threading
from typing import Literal

from search.children.fork_filter import listen_to_forks, refuse_forks

Protection = Literal["seccomp", "seccomp_uncounted", "process_limit", "group_kill"]
"""From the strongest to the weakest: refused and counted; refused; bounded in number; only killed afterwards."""

SPARE_TASKS = 64
"""So many threads and processes more than its user has may there be, where a limit is all there is."""
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_QUESTION_BYTES = 80
_INTERRUPTED = (errno.EINTR, errno.ENOENT)


class Forks:
    """Refuses forks in this process from the moment that :meth:`forbid` was called, as far as the system lets it."""

    def __init__(self, protection: Protection, listener: int | None = None) -> None:
        self.protection = protection
        self._refused = 0
        if listener is not None:
            threading.Thread(target=self._answer, args=(listener,), name="forks", daemon=True).start()

    @classmethod
    def forbid(cls) -> Forks:
        """Call it when everything is imported and nothing foreign has run. Threads may still be started."""
        with contextlib.suppress(OSError):
            return cls("seccomp", listen_to_forks())
        with contextlib.suppress(OSError):
            refuse_forks()
            return cls("seccomp_uncounted")
        if os.geteuid() != 0:  # for root the limit is void
            with contextlib.suppress(OSError, ValueError):
                most = _tasks_of(os.getuid()) + SPARE_TASKS
                resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
                return cls("process_limit")
        return cls("group_kill")

    def refused(self) -> int:
        """Forks refused since the last call."""
        count, self._refused = self._refused, 0
        return count

    def _answer(self, listener: int) -> None:
        """Who forks waits in the kernel until it is answered here, so what it tried is counted before it goes on."""
        try:
            while True:
                question = bytearray(_QUESTION_BYTES)
                try:
                    fcntl.ioctl(listener, _RECEIVE, question)
                    self._refused += 1
                    answer = struct.pack("=QqiI", *struct.unpack_from("=Q", question), 0, -errno.EAGAIN, 0)
                    fcntl.ioctl(listener, _SEND, bytearray(answer))
                except OSError as error:
                    if error.errno not in _INTERRUPTED:
                        raise
        finally:
            os.close(listener)  # further forks then fail by themselves


def _tasks_of(user: int) -> int:
    """Threads that run as a user: what the limit counts."""
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all we need
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:  # noqa: PTH116
                count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count

"""Whatever ends this process, what its children and commands have started ends with it.

A child dies with its parent (PDEATHSIG), but not what it has started: its compiler, and what that has started, would go
on beside the next one's measurements, and one that hangs for ever. No handler of a process runs when it is killed, so
another one waits for its end. It is nobody's child: who waits for all of theirs must not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time

from search.children.marks import MARK_NAME, kill_marked

_LOOK_AGAIN_SECONDS = 0.1


class Watcher:
    """Of one process: the mark of what it starts, and the process that kills what has it. Thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """There is none yet: a fork has marks of its own."""
        self._mark: str | None = None
        self._lock = threading.Lock()

    def mark(self) -> str:
        """How the marks of all that this process starts must begin; starts the watching process first. OSError.

        In a child of ours it is the child's own: who watches its parent, and who kills it, find what it starts.
        """
        if inherited := os.environ.get(MARK_NAME):
            return inherited
        with self._lock:
            if self._mark is None:
                mark = os.urandom(16).hex()
                _start(mark)
                self._mark = mark
            return self._mark


WATCHER = Watcher()
os.register_at_fork(after_in_child=WATCHER.forget)


def _start(mark: str) -> None:
    from pathlib import Path  # not for the watching process, which is to be light

    words = [sys.executable, "-S", "-P", "-m", "search.children.watcher", str(os.getpid()), mark]
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    environment = {**libraries, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    pid = os.posix_spawn(sys.executable, words, environment, file_actions=nothing, setsid=True)
    with contextlib.suppress(ChildProcessError):  # who ignores SIGCHLD has no children to wait for
        os.waitpid(pid, 0)


def _watch(pid: int, mark: str) -> None:
    """In the watching process: waits for the other's end, and kills what it has left."""
    ended = os.pidfd_open(pid)
    if os.getppid() != pid or os.fork():  # it has ended already, and started nothing; or it has who watches it
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # sent to all at once: the other may take its time
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - whoever reads a pipe waits for its end
        if descriptor not in (0, 1, 2, ended):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    select.select([ended], [], [])
    for _ in range(2):  # what is being started shows no environment for a moment
        kill_marked(mark)
        time.sleep(_LOOK_AGAIN_SECONDS)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])

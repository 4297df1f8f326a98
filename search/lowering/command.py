"""A command of a toolchain, run so that nothing of it stays: bounded in time, its whole process group killed after it.

A compiler is a driver that starts others, and may be a script of somebody's: killing the driver alone leaves them.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import resource
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from search.children.environment import passed_on
from search.errors import Cancelled, ChildFailed, ToolchainUnavailable

KEPT_BYTES = 1 << 16
"""Of each stream so much is kept, the end of it: a command that prints without end must not fill memory."""
TAIL_CHARS = 800
_POLL_SECONDS = 0.02
_SPARE_SECONDS = 5
_NOT_OURS = "how a command ended cannot be known: this process ignores SIGCHLD, or waits for every child itself"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended, and what it printed."""

    returncode: int
    """Negative: the signal that killed it."""
    stdout: str
    stderr: str

    @property
    def failure(self) -> str | None:
        """Why this is a failure, with the end of what was printed; None for exit status 0."""
        if self.returncode == 0:
            return None
        how = f"exit status {self.returncode}"
        if self.returncode < 0:
            how = f"killed by {signal.Signals(-self.returncode).name}"
        printed = (self.stderr.strip() or self.stdout.strip())[-TAIL_CHARS:]
        return f"{how}: {printed}" if printed else f"{how}, and it printed nothing"


class CommandTimeout(ToolchainUnavailable):
    """A command did not end in time."""


def run_command(
    words: Sequence[str],
    *,
    timeout_seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    cpus: Sequence[int] = (),
    memory_limit_bytes: int | None = None,
) -> Ended:
    """Runs a command to its end, without input, in a process group that is killed whatever happens.

    ``folder``: where it runs; ``environment``: variables besides those that every child is given, and no others are
    seen; ``output``: a file that takes all of stdout; ``cpus``: the only CPUs that it, and what it starts, may run on
    (none: those of this thread); ``memory_limit_bytes``: of address space, for each process. Its processor time is
    bounded too, so that one whose guardian was killed ends by itself. Raises ToolchainUnavailable when it cannot be
    started or (CommandTimeout) does not end in time, Cancelled when ``cancelled()`` says so; both within a moment.
    ChildFailed where this process cannot know how its children end.
    """
    try:
        with _on(cpus), _groups.starting():
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output is None else output,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=folder,
                env={**passed_on(), **(environment or {})},
            )
            _groups.running.add(process.pid)
    except OSError as error:
        raise ToolchainUnavailable(f"{words[0]} cannot be started: {error.strerror or error}") from error
    _bound(process.pid, timeout_seconds, memory_limit_bytes)
    streams = _Streams(process)
    deadline = time.monotonic() + timeout_seconds
    try:
        while not _has_ended(process.pid):
            if cancelled():
                raise Cancelled(f"{words[0]} was stopped")
            if time.monotonic() > deadline:
                raise CommandTimeout(f"{words[0]} did not end within {timeout_seconds:g} s")
            streams.read(_POLL_SECONDS)
        streams.read(0)
    finally:
        # Before the process is waited for: until then its group's id cannot be another's.
        _groups.kill(process.pid)
        process.wait()
        streams.close()
    return Ended(returncode=process.returncode, stdout=streams.text("stdout"), stderr=streams.text("stderr"))


class _Groups:
    """Process groups that are not killed yet: a thread that waits for one may be gone before it, with this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Knows of none: what a fork's parent runs is not the child's to kill."""
        self.running: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Within it a group may be started, and is noted: this process does not end in between. Raises Cancelled."""
        with self._lock:
            if self._closed:
                raise Cancelled("this process ends")
            yield

    def kill(self, group: int) -> None:
        """Kills one. Its first process must not have been waited for: its number could be another's by now."""
        with self._lock:
            self._kill(group)

    def kill_all(self) -> None:
        """Kills every one; none is started any more."""
        with self._lock:
            self._closed = True
            for group in tuple(self.running):
                self._kill(group)

    def _kill(self, group: int) -> None:
        self.running.discard(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


_groups = _Groups()
atexit.register(_groups.kill_all)
os.register_at_fork(after_in_child=_groups.forget)


class _Streams:
    """The ends of what a process prints. Never waits for the streams' end: whoever it started may hold them open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._kept = {"stdout": b"", "stderr": b""}
        self._open = selectors.DefaultSelector()
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            if stream is None:  # it goes to a file
                continue
            os.set_blocking(stream.fileno(), False)
            self._open.register(stream, selectors.EVENT_READ, name)

    def read(self, wait_seconds: float) -> None:
        """Takes what is there; waits at most so long for it."""
        if not self._open.get_map():
            time.sleep(wait_seconds)
            return
        while ready := self._open.select(wait_seconds):
            for key, _ in ready:
                chunk = os.read(key.fd, KEPT_BYTES)
                if not chunk:
                    self._open.unregister(key.fileobj)
                self._kept[key.data] = (self._kept[key.data] + chunk)[-KEPT_BYTES:]
            if wait_seconds or not self._open.get_map():
                return

    def text(self, name: str) -> str:
        """What is kept of a stream."""
        return self._kept[name].decode(errors="replace")

    def close(self) -> None:
        """Closes our ends."""
        self._open.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def _on(cpus: Sequence[int]) -> Iterator[None]:
    """Within it this thread, and so what it starts, runs on these CPUs alone."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _bound(pid: int, timeout_seconds: float, memory_limit_bytes: int | None) -> None:
    """Limits of a process that has just been started, and of all that it will start."""
    seconds = math.ceil(timeout_seconds * (os.cpu_count() or 1)) + _SPARE_SECONDS
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: seconds}
    if memory_limit_bytes is not None:
        limits[resource.RLIMIT_AS] = memory_limit_bytes
    for kind, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            _, highest = resource.prlimit(pid, kind)
            within = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
            resource.prlimit(pid, kind, (within, within))


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; it stays to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        raise ChildFailed(_NOT_OURS) from None

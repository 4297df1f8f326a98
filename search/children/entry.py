"""What a child does first, in the child: tie its life to its parent, and take the protocol away from stdout.

Imported before anything heavy. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the parent tells a child of the life it is to lead; travels as the child's first argument, in JSON."""

    parent_pid: int
    answer_fd: int
    cpus: tuple[int, ...] = ()
    memory_limit_bytes: int | None = None
    progress_fd: int | None = None

    def argument(self) -> str:
        """The one command-line word."""
        return json.dumps(vars(self))

    @classmethod
    def from_argument(cls, text: str) -> Entry:
        """Inverse of :meth:`argument`."""
        fields = json.loads(text)
        return cls(**{**fields, "cpus": tuple(fields["cpus"])})


class Channel:
    """The child's end of the protocol: JSON lines in, JSON lines out."""

    def __init__(self, command_fd: int, answer_fd: int, progress_fd: int | None) -> None:
        self._command_fd = command_fd
        self._answer_fd = answer_fd
        self._progress_fd = progress_fd

    def commands(self) -> Iterator[dict[str, Any]]:
        """Every command until the parent closes its end."""
        pending = bytearray()
        while True:
            chunk = os.read(self._command_fd, _CHUNK_BYTES)
            if not chunk:
                return
            pending += chunk
            while (end := pending.find(b"\n")) >= 0:
                line = bytes(pending[:end])
                del pending[: end + 1]
                yield json.loads(line)

    def answer(self, message: Mapping[str, Any]) -> None:
        """Send one line. NaN and infinities are refused: they are not JSON."""
        data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._answer_fd, data) :]

    def progress(self, number: int) -> None:
        """Note a number where the parent finds it after this process died; wakes nobody up."""
        if self._progress_fd is not None:
            os.pwrite(self._progress_fd, number.to_bytes(8, "little"), 0)


def enter(argument: str) -> Channel:
    """Become a child: die with the parent, dump no core, be the first to go when memory runs out.

    Afterwards descriptors 1 and 2 are the parent's drained log pipe and descriptor 0 is empty, so that code under
    measurement cannot speak or listen on the protocol by printing or reading.
    """
    entry = Entry.from_argument(argument)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != entry.parent_pid:  # the parent died before prctl: nobody would ever signal us
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored it would stay so: no command's status would be known
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if entry.memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (entry.memory_limit_bytes, entry.memory_limit_bytes))
    _volunteer_for_the_oom_killer()
    if entry.cpus:
        os.sched_setaffinity(0, entry.cpus)
    command_fd = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.set_inheritable(entry.answer_fd, False)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor, for the life of the process
    return Channel(command_fd, entry.answer_fd, entry.progress_fd)


def _volunteer_for_the_oom_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - not a file one makes a path of
            score.write("1000")
    except OSError:
        pass  # a container may forbid it; the memory limit still holds

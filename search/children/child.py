"""The killable child, parent side: candidate code, compilers and torch run behind this class and nowhere else.

A child leads its own session, dies with this process, answers in JSON lines on a pipe of its own, and what it prints
is drained and cut. Killing it kills its group and whatever escaped the group.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.children.entry import Entry
from search.children.environment import passed_on
from search.children.marks import MARK_NAME, kill_marked
from search.children.scratch import child_folder, remove_child_folder
from search.children.spawner import SPAWNER
from search.errors import Cancelled, ChildFailed

log = logging.getLogger(__name__)

LOG_TAIL_BYTES = 4096
KILL_GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05
MAX_LINE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class ChildTimeout(Exception):  # noqa: N818 - an event of the conversation, handled next to the call
    """The child did not answer in time. It still lives: kill it."""


class ChildSurvived(ChildFailed):
    """The child outlived SIGKILL (a process stuck in the kernel): its device must be quarantined."""


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a child ended."""

    signal_name: str | None
    exit_code: int | None
    log_tail: str
    progress: int

    def document(self) -> dict[str, Any]:
        """JSON form: ``signal`` or ``exit_code``, and the end of what was printed."""
        how = {"signal": self.signal_name} if self.signal_name else {"exit_code": self.exit_code}
        return {**how, "log_tail": self.log_tail}


class ChildGone(Exception):  # noqa: N818 - an event of the conversation, handled next to the call
    """The child ended (or broke the protocol and was ended) before it answered."""

    def __init__(self, exit_: ChildExit) -> None:
        self.exit = exit_
        super().__init__(f"child ended: {exit_.document()}")


class _Log:
    """Drains what the child prints, keeping the last bytes: neither memory nor disk can be filled."""

    def __init__(self, read_fd: int) -> None:
        self._tail = b""
        self._thread = threading.Thread(target=self._drain, args=(read_fd,), name="child-log", daemon=True)
        self._thread.start()

    def _drain(self, read_fd: int) -> None:
        while chunk := os.read(read_fd, _CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-LOG_TAIL_BYTES:]
        os.close(read_fd)

    def tail(self, *, wait_seconds: float = 0.0) -> str:
        """The last printed text; waits for the end of the stream when asked."""
        if wait_seconds:
            self._thread.join(wait_seconds)
        return self._tail.decode(errors="replace")


class Child:
    """One child process and the conversation with it. Not thread-safe: one conversation at a time."""

    def __init__(self, process: subprocess.Popen[bytes], command_fd: int, answer_fd: int, log_fd: int, mark: str,
                 progress_fd: int, module: str, scratch: str) -> None:  # fmt: skip
        self._process = process
        self._module = module
        self._scratch = scratch
        self._command_fd = command_fd
        self._answer_fd = answer_fd
        self._progress_fd = progress_fd
        self._pid_fd = os.pidfd_open(process.pid)
        self._log = _Log(log_fd)
        self._mark = mark
        self._pending = bytearray()
        self._exit: ChildExit | None = None

    @classmethod
    def start(
        cls,
        module: str,
        arguments: Sequence[str] = (),
        *,
        cpus: Sequence[int] = (),
        lock_fd: int | None = None,
        environment: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
    ) -> Child:
        """Start ``python -m module ENTRY arguments...`` in a session of its own, pinned to ``cpus`` if any.

        The child inherits ``lock_fd``, so that a device stays locked while anything of the child lives. Its temporary
        directory is a folder of its own, which :meth:`kill` removes.
        """
        passed, scratch = passed_on(), child_folder()
        mark = f"{passed[MARK_NAME]}-{secrets.token_hex(16)}"
        command_read, command_write = os.pipe()
        answer_read, answer_write = os.pipe()
        log_read, log_write = os.pipe()
        progress_fd = os.memfd_create("child-progress")
        entry = Entry(
            parent_pid=os.getpid(),
            answer_fd=answer_write,
            cpus=tuple(cpus),
            memory_limit_bytes=memory_limit_bytes,
            progress_fd=progress_fd,
        )
        path = os.pathsep.join(filter(None, [_PACKAGE_ROOT, passed.get("PYTHONPATH")]))
        variables = {**passed, **_ONE_THREAD, "PYTHONPATH": path, "TMPDIR": scratch, MARK_NAME: mark}
        variables |= environment or {}
        # -P: the directory that the service happens to run in is no place to import from.
        command = [sys.executable, "-P", "-m", module, entry.argument(), *arguments]
        inherited = (answer_write, progress_fd) if lock_fd is None else (answer_write, progress_fd, lock_fd)
        try:
            process = SPAWNER.start(
                lambda: subprocess.Popen(
                    command,
                    stdin=command_read,
                    stdout=log_write,
                    stderr=log_write,
                    env=variables,
                    pass_fds=inherited,
                    start_new_session=True,
                )
            )
        except BaseException:
            for fd in (command_write, answer_read, log_read, progress_fd):
                os.close(fd)
            remove_child_folder(scratch)
            raise
        finally:
            for fd in (command_read, answer_write, log_write):
                os.close(fd)
        os.set_blocking(command_write, False)
        os.set_blocking(answer_read, False)
        return cls(process, command_write, answer_read, log_read, mark, progress_fd, module, scratch)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group and session."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the end was noticed by a conversation or by :meth:`kill`."""
        return self._exit is None and not _readable(self._pid_fd)

    def send(self, message: Mapping[str, Any], *, timeout_seconds: float = 30.0) -> None:
        """Send one command. :class:`ChildGone` if it ended, :class:`ChildTimeout` if it does not read."""
        self._require_running()
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        deadline = time.monotonic() + timeout_seconds
        while data:
            try:
                data = data[os.write(self._command_fd, data) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ChildTimeout("the child does not read its commands") from None
                select.select([self._pid_fd], [self._command_fd], [], min(left, POLL_SECONDS))
            except BrokenPipeError:
                raise ChildGone(self.kill()) from None

    def receive(self, *, timeout_seconds: float, cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Next answer. Raises ChildGone (ended), ChildTimeout (still alive), Cancelled (killed)."""
        self._require_running()
        deadline = time.monotonic() + timeout_seconds
        while True:
            if (line := self._next_line()) is not None:
                return self._parse(line)
            if cancelled():
                self.kill()
                raise Cancelled("measurement cancelled")
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChildTimeout(f"no answer within {timeout_seconds:g} s")
            ready, _, _ = select.select([self._answer_fd, self._pid_fd], [], [], min(left, POLL_SECONDS))
            if self._answer_fd in ready and self._fill():
                continue
            if self._pid_fd in ready or self._answer_fd in ready:  # ended, or closed its answers: nothing will come
                raise ChildGone(self.kill())

    def kill(self) -> ChildExit:
        """SIGKILL the child, its group and every process that carries its mark; say how the child ended.

        Idempotent. ChildSurvived when it is still there after ten seconds.
        """
        if self._exit is not None:
            return self._exit
        ended_by_itself = _readable(self._pid_fd)
        _signal_group(self.pid)  # before reaping: a zombie leader keeps the group id from being reused
        try:
            code = self._process.wait(KILL_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            raise ChildSurvived(f"child {self.pid} survived SIGKILL for {KILL_GRACE_SECONDS:g} s") from None
        kill_marked(self._mark)  # what left the group, with setsid
        remove_child_folder(self._scratch)
        self._exit = ChildExit(
            signal_name=_signal_name(-code) if code < 0 else None,
            exit_code=code if code >= 0 else None,
            log_tail=self._log.tail(wait_seconds=1.0),
            progress=int.from_bytes(os.pread(self._progress_fd, 8, 0), "little"),
        )
        for fd in (self._command_fd, self._answer_fd, self._pid_fd, self._progress_fd):
            os.close(fd)
        if (
            ended_by_itself or code != -signal.SIGKILL
        ):  # in the thread of the task that it worked for: the line carries that task's ids
            log.info("child %s (%s) ended", self.pid, self._module, extra=self._exit.document())
        return self._exit

    def _require_running(self) -> None:
        if self._exit is not None:
            raise ChildGone(self._exit)

    def _fill(self) -> bool:
        try:
            chunk = os.read(self._answer_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._pending += chunk
        if len(self._pending) > MAX_LINE_BYTES:
            raise ChildGone(self.kill())
        return bool(chunk)

    def _next_line(self) -> bytes | None:
        end = self._pending.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):  # only code that runs in the child can have written this
            raise ChildGone(self.kill())
        return message


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _signal_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

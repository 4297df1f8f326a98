"""A service of our own for the duration of one command: a child process that goes when we go."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tuner_service.cli.errors import CommandError, ExitStatus

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 30.0
LISTENING = "listening on "
LOG_FILE = "service.log"
_PR_SET_PDEATHSIG = 1


class PrivateService:
    """``tuner serve --port 0`` on a data directory, as a context manager; ``url`` once entered.

    Its log goes to ``service.log`` there. It runs in a session of its own, so that Ctrl-C reaches only the command,
    which then cancels its job in order.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._log_start_bytes = 0

    def __enter__(self) -> Self:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            log = (self.data_dir / LOG_FILE).open("ab")
            self._log_start_bytes = log.tell()
        except OSError as error:
            raise CommandError(f"cannot use data directory {self.data_dir}: {error.strerror or error}") from None
        with log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner_service.cli", "serve", "--port", "0", "--data-dir", str(self.data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        try:
            self.url = self._await_line()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, *, lines: int = 15) -> str:
        """What this service said was wrong, else the last lines that it logged."""
        try:
            logged = (self.data_dir / LOG_FILE).read_bytes()[self._log_start_bytes :]
        except OSError:
            return ""
        found = logged.decode("utf-8", errors="replace").splitlines()
        said = [line.removeprefix("error: ") for line in found if line.startswith("error: ")]
        return "\n".join(said or found[-lines:])

    def _await_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        found: list[str] = []
        heard = threading.Event()
        threading.Thread(target=_listen, args=(self._process.stdout, found, heard), daemon=True).start()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not heard.wait(0.05):
            if time.monotonic() > deadline:
                break
        if found:
            return found[0]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        raise CommandError(
            f"the service did not start on {self.data_dir}:\n{self.log_tail()}", status=ExitStatus.UNREACHABLE
        )

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _listen(stream: IO[str], found: list[str], heard: threading.Event) -> None:
    """Reads to the end, so that the service never blocks on a full pipe."""
    with stream:
        for line in stream:
            if line.startswith(LISTENING) and not found:
                found.append(line[len(LISTENING) :].strip())
                heard.set()
    heard.set()


def _die_with(parent_pid: int) -> Callable[[], None]:
    """What the child does before exec: ask Linux for SIGTERM when we die, and go at once if we already have."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def before_exec() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent_pid:
                os._exit(1)

    return before_exec

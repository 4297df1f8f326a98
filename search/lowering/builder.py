"""The service's side of lowering: a child process that builds, and can be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from search.errors import Cancelled, ChildFailed, ToolchainUnavailable
from search.lowering.contract import BuildRequest, BuildResult
from search.outcome import Rejected
from search.space.candidate import TargetKind

COMPILE_TIMEOUT_SECONDS = 60.0
"""One compiler call, at most."""
_COMPILE_SHARE = 0.8
"""Of the silence that is tolerated: a slow compiler is the child's to stop, so that only the guilty are rejected."""
_POLL_SECONDS = 0.05
_REAP_SECONDS = 10.0
_STARTS = 2
_LOG_TAIL_BYTES = 4096
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "TUNER_CC")
"""The child sees these variables and no others: the service's own hold passwords."""
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class Builder:
    """Builds candidates in a child that it owns; one build at a time. Close it, or the child stays until this ends.

    The artifact store directory is shared with whoever reads sources or loads libraries (see ``store.py``).
    """

    def __init__(self, store_dir: str | Path, *, cpus: Sequence[int] | None = None, target: TargetKind = "cpu") -> None:
        self.store_dir = Path(store_dir).resolve()
        self._cpus, self._target = tuple(cpus or ()), target
        self._child: _Child | None = None
        # The child is told to die with the thread that started it, so that thread must live as long as we do.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lowering-starter")

    def build(
        self,
        requests: Sequence[BuildRequest],
        *,
        timeout_seconds: float,
        cancelled: Callable[[], bool],
        fresh: bool = False,
    ) -> Iterator[BuildResult]:
        """One result for each request, as they get ready, in any order.

        ``timeout_seconds`` is the longest silence of the child; then the request in flight is tried once more alone,
        and rejected ``compile``/``compile_timeout`` if it hangs again. A crash does the same with
        ``compiler_crashed``. ``fresh`` uses a new process and reads nothing from the store. Raises Cancelled,
        ToolchainUnavailable, ChildFailed.
        """
        pending = {request.id: request for request in requests}
        if len(pending) != len(requests):
            raise ValueError("request ids must differ")
        suspects: list[BuildRequest] = []
        failed_starts = 0
        if fresh:
            self._stop()
        try:
            while pending or suspects:
                alone = not pending
                batch = [suspects.pop(0)] if alone else list(pending.values())
                in_flight: str | None = None
                try:
                    for kind, value in self._answers(batch, fresh, timeout_seconds, cancelled):
                        failed_starts = 0
                        if kind == "lowering":
                            in_flight = value
                        elif kind == "result":
                            result = BuildResult.from_document(value)
                            pending.pop(result.id, None)
                            batch = [request for request in batch if request.id != result.id]
                            yield result
                    if batch:
                        raise ChildFailed(f"the lowering child left out {[request.id for request in batch]}")
                except _Ended as end:
                    if in_flight is None:
                        failed_starts += 1
                        if failed_starts >= _STARTS:
                            raise ChildFailed(f"the lowering child does not start: {end.detail}") from None
                        suspects = batch + suspects if alone else suspects
                    elif alone:
                        rejected = Rejected(stage="compile", reason=end.reason, detail=end.detail)
                        for request in batch:
                            yield BuildResult(id=request.id, rejection=rejected)
                    elif pending:
                        # Nobody is blamed before it has failed alone. When the one in flight was answered already,
                        # it was the compiler's call for others that ended the child: try the oldest.
                        suspect = in_flight if in_flight in pending else next(iter(pending))
                        suspects.append(pending.pop(suspect))
        finally:
            if fresh or (self._child is not None and self._child.busy):
                self._stop()

    def close(self) -> None:
        """Kill the child. The builder may be used again; it then starts another."""
        self._stop()

    def _answers(
        self, batch: Sequence[BuildRequest], fresh: bool, timeout_seconds: float, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[str, Any]]:
        """The child's answers to one command. Raises _Ended (the child is gone then) and what :meth:`build` raises."""
        if self._child is None or not self._child.alive:
            self._stop()
            self._child = self._starter.submit(_Child, self._cpus, self.store_dir / "tilelang").result()
        child = self._child
        command = {
            "requests": [request.document() for request in batch],
            "target": self._target,
            "store": str(self.store_dir),
            "fresh": fresh,
            "compile_timeout_seconds": min(COMPILE_TIMEOUT_SECONDS, _COMPILE_SHARE * timeout_seconds),
        }
        child.send(command)
        heard = time.monotonic()
        while True:
            answer = child.receive(_POLL_SECONDS)
            if cancelled():
                self._stop()
                raise Cancelled("build cancelled")
            if answer is None:
                if time.monotonic() - heard > timeout_seconds:
                    self._stop()
                    raise _Ended("compile_timeout", {"limit_seconds": timeout_seconds})
                continue
            heard = time.monotonic()
            kind, value = next(iter(answer.items()))
            if kind == "ended":
                self._stop()
                raise _Ended("compiler_crashed", value)
            if kind == "unavailable":
                raise ToolchainUnavailable(value)
            if kind == "failed":
                raise ChildFailed(value)
            if kind == "done":
                child.busy = False
                return
            yield kind, value

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


class _Ended(Exception):  # noqa: N818 - an event of the conversation, handled next to the call
    """The child ended, or was ended because it fell silent."""

    def __init__(self, reason: str, detail: dict[str, Any]) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(reason)


class _Child:
    """One lowering process and the lines to and from it."""

    def __init__(self, cpus: Sequence[int], tilelang_cache: Path) -> None:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        path = os.pathsep.join(filter(None, [_PACKAGE_ROOT, passed.get("PYTHONPATH")]))
        words = [str(os.getpid()), ",".join(str(cpu) for cpu in cpus)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "search.lowering.child", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # TileLang wants a place to write to when it is imported, and a service may have no home.
            env={**passed, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TILELANG_CACHE_DIR": str(tilelang_cache)},
            start_new_session=True,
        )
        self.busy = False
        self._received = b""
        self._log = b""
        self._drain = threading.Thread(target=self._drain_log, name="lowering-log", daemon=True)
        self._drain.start()

    @property
    def alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def send(self, command: dict[str, Any]) -> None:
        """One command. A child that is gone is noticed by the next receive."""
        assert self._process.stdin is not None
        self.busy = True
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command, allow_nan=False).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, wait_seconds: float) -> dict[str, Any] | None:
        """The next answer; ``{"ended": how}`` once the child is gone; None when nothing came in time."""
        assert self._process.stdout is not None
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._process.stdout], [], [], wait_seconds)
            if not ready:
                return None
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                return {"ended": self._ending()}
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """SIGKILL to the child and the compilers it started. Raises ChildFailed if it will not die."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ChildFailed(f"lowering child {self._process.pid} survived SIGKILL") from error
        self._drain.join(_REAP_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _ending(self) -> dict[str, Any]:
        """How the child ended, with the end of what it printed."""
        code = self._process.wait(_REAP_SECONDS)
        self._drain.join(1.0)
        how = {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code}
        return {**how, "log_tail": self._log.decode(errors="replace")}

    def _drain_log(self) -> None:
        """Keeps the last of what is printed, so that neither the pipe nor a disk fills up."""
        assert self._process.stderr is not None
        while chunk := os.read(self._process.stderr.fileno(), 1 << 16):
            self._log = (self._log + chunk)[-_LOG_TAIL_BYTES:]

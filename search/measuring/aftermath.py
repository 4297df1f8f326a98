"""What a kernel must leave as it was besides memory: floating-point mode, threads, child processes; and that it did not
try to start any. Child side."""

from __future__ import annotations

import os

from search.children.forks import Forks
from search.measuring.timers import NativeTimer
from search.outcome import Rejected


class Aftermath:
    """Remembers the state of a clean process and says what a kernel changed."""

    def __init__(self, timer: NativeTimer, forks: Forks) -> None:
        self._timer, self._forks = timer, forks
        self._float_mode = timer.float_mode()
        self._threads = _threads()

    def harm(self) -> Rejected | None:
        """The rejection of the kernel that just ran, if it left something behind. Restores the float mode."""
        mode, forked = self._timer.float_mode(), forked_rejection(self._forks)
        if mode != self._float_mode:
            # Loading code linked with -ffast-math does this: every later result of the process would flush denormals.
            self._timer.set_float_mode(self._float_mode)
            detail: dict[str, object] = {"before": hex(self._float_mode), "after": hex(mode)}
            return Rejected(stage="runtime", reason="changed_float_mode", detail=detail)
        threads, processes = _threads() - self._threads, _has_children()
        if threads > 0 or processes:
            detail = {"threads": threads, "processes": processes}
            return Rejected(stage="runtime", reason="left_running", detail=detail)
        return forked


def forked_rejection(forks: Forks) -> Rejected | None:
    """``forked`` if processes were refused since the last time this was asked."""
    refused = forks.refused()
    return Rejected(stage="runtime", reason="forked", detail={"refused": refused}) if refused else None


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only counted


def _has_children() -> bool:
    """True when this process has child processes, running or unreaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True

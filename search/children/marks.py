"""The mark by which processes are found again, whatever group or session they went to. Standard library only.

It stands in the environment that a process was started with, and what that starts inherits it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK_NAME = "TUNER_CHILD_TOKEN"
"""The variable that holds it: a mark to find processes by, no secret."""


def kill_marked(mark: str) -> None:
    """Kill every process whose mark begins so, and wait for a moment until there are none. Never this one."""
    beginning = f"{MARK_NAME}={mark}".encode()
    for _ in range(20):  # again while there are any: one may have forked while we looked
        found = [pid for pid in _process_ids() if pid != os.getpid() and _is_marked(pid, beginning)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names are all we need


def _is_marked(pid: int, beginning: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:  # noqa: PTH123 - hot loop over /proc
            return any(variable.startswith(beginning) for variable in environment.read().split(b"\0"))
    except OSError:
        return False

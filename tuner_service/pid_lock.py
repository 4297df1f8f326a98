"""A locked file that says whose it is. The lock dies with the process that holds it, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class PidLock:
    """One file, whose folder must be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> str | None:
        """None once this object has it; else the pid of who does, ``unknown`` where it has not said so. OSError."""
        if self._descriptor is not None:
            return None
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            return holder
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return None

    def release(self) -> None:
        """Gives the file back. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

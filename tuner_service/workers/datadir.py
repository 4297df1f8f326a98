"""The data directory: what lies where, and the lock that keeps two services from sharing it."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from search.children.scratch import sweep
from tuner_service.errors import DataDirInUse, DataDirUnusable


class DataDir:
    """One data directory. The lock dies with the process that holds it, however it dies."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.artifacts = self.path / "artifacts"
        self.work = self.path / "work"
        self._lock_path = self.path / "service.lock"
        self._descriptor: int | None = None

    def lock(self) -> None:
        """Takes the directory; does nothing when this object has it.

        Raises DataDirInUse, naming the pid that has it, and DataDirUnusable.
        """
        if self._descriptor is not None:
            return
        try:
            self._take()
        except OSError as error:
            raise DataDirUnusable(self.path, error) from None

    def _take(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DataDirInUse(self.path, holder) from None
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def sweep(self) -> list[Path]:
        """Removes what killed compilers and children left, here and in the temporary directory; which folders it was.

        The directory must be locked: what was being written in it is nobody's any more.
        """
        folders = (self.work, *self.work.glob("*/"), *self.work.glob("*/*/"))
        removed = sweep(folders)
        for depth in ("", "*/", "*/*/"):
            for unfinished in self.work.glob(f"{depth}.new-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
                removed.append(unfinished)
        return removed

    def unlock(self) -> None:
        """Gives the directory back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

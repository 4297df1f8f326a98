"""The data directory: what lies where, and the lock that keeps two services from sharing it."""

from __future__ import annotations

import shutil
from pathlib import Path

from search.children.scratch import sweep
from tuner_service.errors import DataDirInUse, DataDirUnusable
from tuner_service.pid_lock import PidLock


class DataDir:
    """One data directory. The lock dies with the process that holds it, however it dies."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.artifacts = self.path / "artifacts"
        self.work = self.path / "work"
        self._lock = PidLock(self.path / "service.lock")

    def lock(self) -> None:
        """Takes the directory; does nothing when this object has it.

        Raises DataDirInUse, naming the pid that has it, and DataDirUnusable.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            holder = self._lock.take()
        except OSError as error:
            raise DataDirUnusable(self.path, error) from None
        if holder is not None:
            raise DataDirInUse(self.path, holder)

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
        self._lock.release()

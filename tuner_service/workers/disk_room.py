"""Whether the disks that a worker works on have room: one that has none takes no task, until there is some again."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

ROOM_BYTES = 4 * 2**20
"""So much must be had in each folder, or a task would not get far. Many sources and libraries fit in."""
LOOK_SECONDS = 3.0
"""Between two looks while there is none."""


class DiskRoom:
    """Thread-safe. It is taken for granted until a task says that there is none."""

    def __init__(
        self, folders: Sequence[Path], *, locks: Sequence[Path] = (), changed: Callable[[], None] = lambda: None
    ) -> None:
        """``folders``: where tasks write; those that are not there are left out. ``locks``: where they make files
        without bytes. ``changed`` is called when room is short, and when it is there again."""
        self._folders = {**dict.fromkeys(locks, 1), **dict.fromkeys(folders, ROOM_BYTES)}
        self._changed = changed
        self._lock = threading.Lock()
        self._looked = 0.0
        self.reason: str | None = None
        """Why there is no room; None while there is."""

    def ran_out(self, reason: str) -> bool:
        """A task found none; False when that is known already."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason, self._looked = reason, time.monotonic()
        log.error("this worker takes no task until there is room: %s", reason)
        self._changed()
        return True

    def look(self) -> None:
        """Looks again, now and then: with room in every folder tasks are taken again."""
        with self._lock:
            if self.reason is None or time.monotonic() - self._looked < LOOK_SECONDS:
                return
            self._looked = time.monotonic()
        if all(_has_room(folder, size) for folder, size in self._folders.items()):
            log.warning("there is room on the disk again: this worker takes tasks")
            self.reason = None
            self._changed()


def _has_room(folder: Path, size_bytes: int) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except FileNotFoundError:
        return True  # whoever needs it makes it
    except OSError:
        return False
    return True

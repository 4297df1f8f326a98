"""Put a file in its place so that readers see all of it or none of it, whatever is killed in between."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

_PREFIX = ".partial-"
_STALE_SECONDS = 3600.0


def place(path: Path, data: bytes) -> None:
    """Write beside the place, flush to the disk, rename into it. Any number of processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    _flush_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed long ago left in a folder."""
    oldest = time.time() - _STALE_SECONDS
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process may have removed it
            if left.stat().st_mtime < oldest:
                left.unlink()


def _flush_folder(folder: Path) -> None:
    """The rename itself must survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot flush a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)

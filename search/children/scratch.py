"""Temporary folders that outlive nobody: each is named after the process that answers for it.

A compiler or a child that is killed leaves behind what it wrote. What a child and all that it starts put into the
temporary directory lies in one folder of its parent's, and goes when the parent has killed it; what a process leaves
that was killed itself is found by its name and removed at the next start of a service.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

_NAME = re.compile(r"tuner-[a-z]+-(?P<space>\d+)-(?P<pid>\d+)-(?P<began>\d+)-\w+")
_children: set[tuple[int, str]] = set()
"""(this process, folder) of children that were not killed yet."""


def scratch_folder(word: str, folder: str | Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A new folder for the length of a ``with`` block, in ``folder`` or the temporary directory; ``word``: whose."""
    return tempfile.TemporaryDirectory(prefix=_prefix(word), dir=folder)


def child_folder() -> str:
    """A new folder that one child is to have as its temporary directory."""
    path = tempfile.mkdtemp(prefix=_prefix("child"))
    _children.add((os.getpid(), path))
    return path


def remove_child_folder(path: str) -> None:
    """Removes a child's folder with all that is in it. The child, and what it started, must have ended."""
    _children.discard((os.getpid(), path))
    shutil.rmtree(path, ignore_errors=True)


def sweep(folders: Iterable[Path] = ()) -> list[Path]:
    """Removes what processes of this user left that are gone: in the temporary directory, and in ``folders``.

    Which ones were removed. What cannot be looked at or removed stays.
    """
    removed = []
    for folder in (Path(tempfile.gettempdir()), *folders):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                match = _NAME.fullmatch(entry.name)
                if match is None or int(match["space"]) != _pid_space() or _lives(match):
                    continue
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    shutil.rmtree(entry.path, ignore_errors=True)
                    removed.append(Path(entry.path))
    if removed:
        log.info("removed %d folders that killed processes had left: %s", len(removed), ", ".join(map(str, removed)))
    return removed


def _prefix(word: str) -> str:
    return f"tuner-{word}-{_pid_space()}-{os.getpid()}-{_began(os.getpid())}-"


def _pid_space() -> int:
    """What process ids are counted in: containers may share a temporary directory, and do not see each other's."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _lives(name: re.Match[str]) -> bool:
    return _began(int(name["pid"])) == int(name["began"])


def _began(pid: int) -> int | None:
    """When a process began, in the kernel's ticks: process ids are given again. None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


@atexit.register
def _remove_all() -> None:
    for pid, path in tuple(_children):
        if pid == os.getpid():
            remove_child_folder(path)

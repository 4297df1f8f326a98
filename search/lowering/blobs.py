"""Where machines keep what they share: bytes under a name, behind one Protocol. Here: a directory that all reach.

Other places need clients of their own (a database, an S3 service) and live with the service; every one of them runs
the same contract suite.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from search.errors import ArtifactsUnavailable

MARKER = ".tuner-artifacts"
"""In the root of a shared directory: without it, the file system that belongs there is not mounted."""
_OURS = (errno.ENOSPC, errno.EDQUOT)
"""A full disk is no outage: waiting does not mend it."""


class Blobs(Protocol):
    """A place for blobs. Thread-safe, used by many processes at once; names are ours (letters, digits, ``/``).

    A blob is there as a whole or not at all, whoever is killed. Every method raises ArtifactsUnavailable while the
    place cannot be reached, and says which; OSError or DatabaseFull when it has no space left.
    """

    def get(self, name: str, *, limit_bytes: int) -> bytes | None:
        """The bytes under a name; None when there are none, or more than ``limit_bytes``."""
        ...

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Store each under its name, in this order, over what is there. Doing it again only makes it young again."""
        ...

    def resting(self, kind: str, *, seconds: float) -> Iterator[str]:
        """Names that begin with ``kind/`` and that nobody put for so long (an hour more or less)."""
        ...

    def remove(self, names: Sequence[str], *, seconds: float) -> int:
        """Remove those of these blobs that nobody put for so long, up to now; how many."""
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...


class DirectoryBlobs:
    """A directory on a file system that every machine mounts; see :class:`Blobs`."""

    def __init__(self, folder: Path) -> None:
        """ArtifactsUnavailable when the directory is not there: it is never made, or a missing mount would pass for an
        empty store."""
        self.folder = folder
        with self._typed():
            if not folder.is_dir():
                raise ArtifactsUnavailable(f"the artifact directory {folder} is not there; make it, or mount it")
            (folder / MARKER).touch()

    def get(self, name: str, *, limit_bytes: int) -> bytes | None:
        """See :meth:`Blobs.get`."""
        with self._typed():
            try:
                with (self.folder / name).open("rb") as file:
                    data = file.read(limit_bytes + 1)
            except FileNotFoundError:
                self._require_marker()
                return None
            return data if len(data) <= limit_bytes else None

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """See :meth:`Blobs.put`."""
        with self._typed():
            self._require_marker()
            for name, data in blobs.items():
                if self.get(name, limit_bytes=len(data)) != data:
                    self._write(self.folder / name, data)
                else:
                    with contextlib.suppress(FileNotFoundError):  # removed just now
                        os.utime(self.folder / name)
                        continue
                    self._write(self.folder / name, data)

    def resting(self, kind: str, *, seconds: float) -> Iterator[str]:
        """See :meth:`Blobs.resting`; by the clocks of this machine and of the file system."""
        with self._typed():
            self._require_marker()
            if not (self.folder / kind).is_dir():
                return
            with os.scandir(self.folder / kind) as entries:
                for entry in entries:
                    if not entry.name.startswith(".") and self._rests(self.folder / kind / entry.name, seconds):
                        yield f"{kind}/{entry.name}"

    def remove(self, names: Sequence[str], *, seconds: float) -> int:
        """See :meth:`Blobs.remove`. Whoever puts one between the look and the removal loses it, as to a bad disk."""
        removed = 0
        with self._typed():
            self._require_marker()
            for name in names:
                if self._rests(self.folder / name, seconds):
                    (self.folder / name).unlink(missing_ok=True)
                    removed += 1
        return removed

    def _rests(self, path: Path, seconds: float) -> bool:
        try:
            return path.stat().st_mtime <= time.time() - seconds
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """See :meth:`Blobs.close`."""

    def _write(self, path: Path, data: bytes) -> None:
        """Beside its place, on disk, then renamed. Pids are not unique on a shared file system: hosts are named."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _require_marker(self) -> None:
        if not (self.folder / MARKER).exists():
            raise ArtifactsUnavailable(f"the artifact directory {self.folder} has no {MARKER}: it is not mounted")

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _OURS:
                raise
            raise ArtifactsUnavailable(f"the artifact directory {self.folder} cannot be used: {error}") from error

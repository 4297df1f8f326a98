"""sha256 of big files, remembered by path, size and time of change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

_FILE_NAME = "file_hashes.json"


class FileHashes:
    """A cache of file hashes; kept in ``folder`` between processes when one is given. A broken cache is ignored."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else Path(folder) / _FILE_NAME
        self._known: dict[str, list[int | str]] = {}
        self._changed = False
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                loaded = json.loads(self._path.read_text())
                self._known = loaded if isinstance(loaded, dict) else {}

    def sha256(self, path: str | Path) -> str:
        """Hex digest of a file's bytes. Raises OSError."""
        resolved = Path(path).resolve()
        stat = resolved.stat()
        stamp: list[int | str] = [stat.st_size, stat.st_mtime_ns]
        known = self._known.get(str(resolved))
        if isinstance(known, list) and len(known) == 3 and known[:2] == stamp:
            return str(known[2])
        with resolved.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._known[str(resolved)] = [*stamp, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        """Write the cache, if there is a place for it and anything new. A full disk costs nothing but time."""
        if self._path is None or not self._changed:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_name(f"{_FILE_NAME}.{os.getpid()}")
            temporary.write_text(json.dumps(self._known))
            temporary.replace(self._path)

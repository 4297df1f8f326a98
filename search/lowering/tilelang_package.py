"""TileLang as files on this machine: where it is and what exactly it is. Never imported here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

from search.lowering.file_hashes import FileHashes

NO_TILELANG = "TileLang is not installed; install the extra 'tune'"


def tilelang_folder() -> Path | None:
    """The installed package's folder; None without one."""
    spec = importlib.util.find_spec("tilelang")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def describe_tilelang(hashes: FileHashes) -> dict[str, Any]:
    """Version and sha256 of what the package holds (its CUDA headers included); ``unavailable`` without one."""
    folder = tilelang_folder()
    if folder is None:
        return {"unavailable": NO_TILELANG}
    libraries = sorted((folder / "lib").glob("lib*.so"))
    record = importlib.metadata.distribution("tilelang").read_text("RECORD") or ""
    return {
        "version": importlib.metadata.version("tilelang"),
        "record_sha256": hashlib.sha256("\n".join(_packaged(record)).encode()).hexdigest(),
        "sha256": {path.name: hashes.sha256(path) for path in libraries if not path.name.startswith("libstub")},
    }


def _packaged(record: str) -> list[str]:
    """The lines of a RECORD that say what the package holds, not how and by whom it was installed.

    Bytecode, and marks of the installer (asked for by name or as a dependency), differ between equal installations: a
    catalog would serve only the virtual environment that it was made in.
    """
    lines = (line.strip() for line in record.splitlines())
    return sorted(line for line in lines if line.startswith("tilelang/") and not line.endswith(".pyc,,"))

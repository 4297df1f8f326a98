"""The artifact store: a directory of sources, libraries and what was built from what, all addressed by content.

::

    sources/<source sha256>.json      Source: everything to rebuild a kernel by hand
    built/<build key>.json            Artifact + CodeFacts of a source under one toolchain
    libraries/<library sha256>.so     shared libraries; a batch shares one (.cubin: of a GPU)

Every file is written beside its place and renamed into it, so that several processes may share a store and a killed
one leaves no half file under a final name. Nothing is ever changed in place. What is saved or found again is as young
as what is new (its time of change says so), so that what rests may be removed beside those who work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search.errors import InvalidInput, Problem
from search.lowering.contract import Artifact, CodeFacts, Source

_HEX = frozenset("0123456789abcdef")
SUFFIXES = ("so", "cubin")
"""Of libraries: for a CPU, for a GPU."""
KINDS = ("built", "libraries", "sources")
"""Its folders; builds first, which name what is in the others."""


class ArtifactStore:
    """One store directory. Thread-safe; makes its folders when first written to."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()

    def save_source(self, source: Source) -> None:
        """Keep a source under its sha256 (which the caller computed)."""
        document = {**asdict(source), "files": dict(source.files)}
        self._write(self._path("sources", source.source_sha256, "json"), _encode(document))

    def load_source(self, source_sha256: str) -> Source:
        """The source of that sha256. InvalidInput when the store has none."""
        try:
            fields = json.loads(self._path("sources", source_sha256, "json").read_bytes())
        except (FileNotFoundError, ValueError):
            problem = Problem(field="/source_sha256", value=source_sha256, message="no such source in the store")
            raise InvalidInput([problem]) from None
        return Source(**{**fields, "build_command": tuple(fields["build_command"])})

    def save_library(self, data: bytes, *, suffix: str = "so") -> tuple[str, str]:
        """Keep a shared library, or a GPU's (``cubin``); its sha256 and absolute path."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path("libraries", sha256, suffix)
        self._write(path, data)
        return sha256, str(path)

    def load_library(self, sha256: str) -> bytes | None:
        """A library's bytes, verified; None when the store does not have it, whole."""
        if len(sha256) != 64 or not set(sha256) <= _HEX:
            return None
        for suffix in SUFFIXES:
            with contextlib.suppress(OSError):
                data = self._path("libraries", sha256, suffix).read_bytes()
                return data if hashlib.sha256(data).hexdigest() == sha256 else None
        return None

    def save_build(self, key: str, artifact: Artifact, facts: CodeFacts) -> None:
        """Remember what a source became under one toolchain."""
        self._write(
            self._path("built", key, "json"), _encode({"artifact": artifact.document(), "facts": facts.document()})
        )

    def find_build(self, key: str) -> tuple[Artifact, CodeFacts] | None:
        """What was built under this key, if its library is still there, whole."""
        try:
            document = json.loads(self._path("built", key, "json").read_bytes())
            artifact = Artifact.from_document(document["artifact"])
            facts = CodeFacts.from_document(document["facts"])
            path = self._path("libraries", artifact.library_sha256, "cubin" if artifact.architecture else "so")
            if hashlib.sha256(path.read_bytes()).hexdigest() != artifact.library_sha256:
                return None
            _freshen(path)
            _freshen(self._path("built", key, "json"))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Artifact(**{**vars(artifact), "library_path": str(path)}), facts

    def resting(self, kind: str, *, seconds: float) -> Iterator[str]:
        """Files ``kind/…`` that nobody saved or found for so long, what killed writers left included. OSError."""
        folder = self.folder / kind
        if folder.is_dir():
            yield from (f"{kind}/{path.name}" for path in folder.iterdir() if _rests(path, seconds))

    def remove(self, names: Sequence[str], *, seconds: float) -> int:
        """Removes those of these files that nobody saved or found for so long, up to now; how many. OSError."""
        removed = 0
        for path in (self.folder / name for name in names):
            if _rests(path, seconds):
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def trim(self, *, seconds: float) -> int:
        """Removes whatever rested for so long: for a store that is not the only one; how many files went. OSError."""
        return sum(self.remove(list(self.resting(kind, seconds=seconds)), seconds=seconds) for kind in KINDS)

    def _path(self, kind: str, key: str, suffix: str) -> Path:
        if not key or len(key) > 64 or not set(key) <= _HEX:
            problem = Problem(field=f"/{kind}", value=key[:80], message="not a sha256", allowed="64 hex digits")
            raise InvalidInput([problem])
        return self.folder / kind / f"{key}.{suffix}"

    def _write(self, path: Path, data: bytes) -> None:
        """Atomic: the final name never shows a partial file. A file already there stays if it is whole."""
        with contextlib.suppress(OSError):  # not there, or not to be read: written anew
            if path.stat().st_size == len(data) and path.read_bytes() == data:
                _freshen(path)
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def _freshen(path: Path) -> None:
    with contextlib.suppress(OSError):  # removed just now, or not ours to change
        os.utime(path)


def _rests(path: Path, seconds: float) -> bool:
    try:
        return path.stat().st_mtime <= time.time() - seconds
    except FileNotFoundError:
        return False


def export(source: Source, folder: str | Path) -> tuple[Path, ...]:
    """Write a source as a folder that builds by hand: ``kernel.py``, ``kernel.c`` or ``.cu``, the header, ``build.sh``.

    Returns the files written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    command = " ".join(source.build_command)
    texts: Mapping[str, str] = {
        "kernel.py": source.tilelang_text,
        f"kernel.{source.language}": source.c_text,
        source.header_name: source.header_text,
        "build.sh": f"#!/bin/sh\nset -eu\n{command}\n",
        **source.files,
    }
    out = []
    for name, text in texts.items():
        path = target / Path(name).name
        path.write_text(text)
        out.append(path)
    (target / "build.sh").chmod(0o755)
    return tuple(out)


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

"""Our own sources that decide what code a schedule becomes: part of every toolchain's fingerprint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from search.space.candidate import TargetKind

_ROOT = Path(__file__).resolve().parents[1]


def lowering_sha256(target: TargetKind) -> str:
    """sha256 (hex) over the names and bytes of the sources that one target's lowering is made of."""
    paths = {
        *_ROOT.glob("lowering/*.py"),
        *_ROOT.glob(f"lowering/{target}/*.py"),
        *_ROOT.glob(f"lowering/{target}/*.h"),
        *_ROOT.glob(f"lowering/{target}/*.cuh"),
        *_ROOT.glob("planning/*.py"),
        *_ROOT.glob("program/*.py"),
        _ROOT / "space" / "uses.py",
    }
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(_ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()

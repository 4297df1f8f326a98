"""Emitted modules, run. Imports TileLang on first use: only the lowering child may call this module."""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Mapping
from typing import Any

from search.children.importing import uncollected
from search.errors import ToolchainUnavailable


def load() -> None:
    """Import TileLang: seconds, once per process. Raises ToolchainUnavailable when that fails, whatever it raises.

    Collections that look through what was imported would take a sixth of every lowering.
    """
    if "tilelang.engine" in sys.modules:
        return
    try:
        with uncollected():
            import tilelang.engine  # noqa: F401
    except Exception as error:
        raise ToolchainUnavailable(f"TileLang cannot be imported: {type(error).__name__}: {error}") from error


def execute(text: str) -> Mapping[str, Any]:
    """The module's globals. TileLang reads the function's source again, so the text is registered under a name."""
    name = f"<tuner {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "tuner_emitted"}
    try:
        exec(compile(text, name, "exec"), module)  # noqa: S102 - our own text, every identifier generated or checked
    finally:
        linecache.cache.pop(name, None)
    return module

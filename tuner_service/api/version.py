"""The version that the service says it has."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("tuner")
    except PackageNotFoundError:
        return "0+uninstalled"


VERSION = _installed()

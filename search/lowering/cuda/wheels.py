"""Files of NVIDIA's PyPI packages: compilers, tools and headers, where there is no toolkit. Found, never imported."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

NVRTC = "nvidia-cuda-nvrtc"
NVDISASM = "nvidia-cuda-nvdisasm"
HEADERS = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
"""The packages that hold CUDA's headers, and one file of each by which its include folder is found."""
_MARKS = {
    "nvidia-cuda-runtime": "cuda_fp16.h",
    "nvidia-cuda-crt": "crt/host_defines.h",
    "nvidia-cuda-cccl": "cuda/std/type_traits",
}


def wheel_version(distribution: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def wheel_file(distribution: str, ending: str) -> Path | None:
    """The installed file whose path ends so (``bin/nvdisasm``), or None."""
    try:
        files = importlib.metadata.distribution(distribution).files or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if f"/{file}".endswith(f"/{ending}") and (path := Path(str(file.locate()))).is_file():
            return path
    return None


def wheel_library(distribution: str, stem: str) -> Path | None:
    """The installed shared library ``stem.so.…`` of a package, or None."""
    try:
        files = importlib.metadata.distribution(distribution).files or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = sorted(str(file.locate()) for file in files if file.name.startswith(f"{stem}.so"))
    return Path(found[0]) if found else None


def header_folders() -> tuple[Path, ...] | None:
    """Include folders of the packages in ``HEADERS``, without repeats; None when one of them is missing."""
    found = [(wheel_file(name, mark), mark) for name, mark in _MARKS.items()]
    folders = [file.parents[mark.count("/")] for file, mark in found if file is not None]
    return tuple(dict.fromkeys(folders)) if len(folders) == len(found) else None


def missing_headers() -> tuple[str, ...]:
    """Those of ``HEADERS`` that are not installed, or not whole."""
    return tuple(name for name, mark in _MARKS.items() if wheel_file(name, mark) is None)


def describe_wheel(distribution: str) -> dict[str, Any]:
    """Version, and sha256 of the list of files that the package says it holds."""
    record = importlib.metadata.distribution(distribution).read_text("RECORD") or ""
    held = sorted(line for line in record.splitlines() if line.startswith("nvidia/") and not line.endswith(".pyc,,"))
    return {
        "version": wheel_version(distribution),
        "record_sha256": hashlib.sha256("\n".join(held).encode()).hexdigest(),
    }

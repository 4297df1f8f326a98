"""Where a CUDA text's includes are: TileLang's templates and CUTLASS from the installed package, CUDA's own headers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from search.errors import ToolchainUnavailable
from search.lowering.cuda.wheels import header_folders, missing_headers
from search.lowering.tilelang_package import NO_TILELANG, tilelang_folder

TOOLKIT_INCLUDE = Path("/usr/local/cuda/include")
"""Where a toolkit's headers usually are; used with NVRTC when the packages with the headers are not installed."""
_CUDA_HEADERS = ("*.h", "*.hpp", "crt/*.h", "crt/*.hpp")


def template_folders() -> tuple[Path, ...]:
    """TileLang's ``tl_templates`` and its CUTLASS. Raises ToolchainUnavailable."""
    package = tilelang_folder()
    if package is None:
        raise ToolchainUnavailable(NO_TILELANG)
    folders = (package / "src", package / "3rdparty" / "cutlass" / "include")
    for folder, mark in zip(folders, ("tl_templates/cuda/reduce.h", "cutlass/cutlass.h"), strict=True):
        if not (folder / mark).is_file():
            raise ToolchainUnavailable(f"the installed TileLang has no {folder / mark}")
    return folders


def cuda_folders() -> tuple[Path, ...]:
    """CUDA's headers for NVRTC, which brings none: from the packages, else from a toolkit. ToolchainUnavailable."""
    if (packaged := header_folders()) is not None:
        return packaged
    if (TOOLKIT_INCLUDE / "cuda_fp16.h").is_file():
        return (TOOLKIT_INCLUDE, TOOLKIT_INCLUDE / "cccl")
    raise ToolchainUnavailable(
        f"CUDA's headers are not installed: {', '.join(missing_headers())} missing, and no toolkit in "
        f"{TOOLKIT_INCLUDE}; install the extra 'cuda' or a CUDA toolkit"
    )


def headers_sha256(folder: Path, sha256: Callable[[str], str]) -> str:
    """sha256 (hex) over names and bytes of the CUDA headers in an include folder that kernels may include."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _CUDA_HEADERS for path in folder.glob(pattern)}):
        digest.update(f"{path.relative_to(folder)} {sha256(str(path))}\n".encode())
    return digest.hexdigest()

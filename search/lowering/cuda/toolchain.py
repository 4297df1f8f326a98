"""The CUDA toolchain of this machine: which compiler, whether it works, what exactly it is.

``TUNER_NVCC`` names an nvcc; ``none`` asks for NVRTC from PyPI. Unset, nvcc is looked for on the PATH and in the usual
place, and NVRTC is taken where there is none. An nvcc that is there and broken is not passed over in silence: which
compiler made a kernel is part of what the kernel is.

Imports neither TileLang nor anything of NVIDIA's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from search.errors import ToolchainUnavailable
from search.lowering.cuda.architectures import ARCHITECTURES, unknown_limits
from search.lowering.cuda.batch import Member, batch_text
from search.lowering.cuda.compiler import CompileError, CudaCompiler
from search.lowering.cuda.facts import read_facts
from search.lowering.cuda.nvcc import COMPILER_VARIABLE, NO_NVCC, Nvcc, nvcc_path
from search.lowering.cuda.nvdisasm import nvdisasm_version
from search.lowering.cuda.nvrtc import Nvrtc
from search.lowering.file_hashes import FileHashes
from search.lowering.missing_compiler import missing_compiler
from search.lowering.sources import lowering_sha256
from search.lowering.tilelang_package import NO_TILELANG, describe_tilelang, tilelang_folder

MAJOR_VERSION = 13
"""Of CUDA: what was tried. Another compiles other code, or nothing."""
CHECK_SECONDS = 20.0
"""A compiler that takes longer for a kernel of one line, headers included, is taken for broken."""
_CHECK_SYMBOL = "tuner_check"
_CHECK_TEXT = f"""\
#include <tl_templates/cuda/reduce.h>
extern "C" __global__ void {_CHECK_SYMBOL}(float* x) {{ x[0] = tl::AllReduce<tl::SumOp, 32, 1>::run(x[0]); }}
"""


def cuda_compiler() -> CudaCompiler:
    """The compiler that builds here; close it when done. Raises ToolchainUnavailable."""
    wanted, found = os.environ.get(COMPILER_VARIABLE), nvcc_path()
    if found is None and wanted and wanted != NO_NVCC:
        mend = f"set {COMPILER_VARIABLE} to an nvcc, or to '{NO_NVCC}' for NVRTC"
        raise ToolchainUnavailable(missing_compiler("CUDA compiler", wanted, mend))
    return Nvrtc() if found is None else Nvcc(found)


def check(architecture: str, *, cancelled: Callable[[], bool] = lambda: False) -> str | None:
    """Why kernels cannot be built for an architecture (``sm_90``), or None: compiles and reads one of one line.

    Takes ``CHECK_SECONDS`` and a few at most when something hangs. Raises Cancelled when ``cancelled()`` says so.
    """
    if tilelang_folder() is None:
        return NO_TILELANG
    try:
        with contextlib.closing(cuda_compiler()) as compiler:
            return (
                _unsuitable(compiler, cancelled)
                or _unknown(compiler, architecture, cancelled)
                or failing(compiler, architecture, cancelled=cancelled)
            )
    except ToolchainUnavailable as error:
        return str(error)


def known_architectures(*, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
    """The architectures that the compiler here can build for and whose limits are known, oldest first.

    Raises ToolchainUnavailable, Cancelled.
    """
    with contextlib.closing(cuda_compiler()) as compiler:
        return tuple(name for name in compiler.architectures(cancelled=cancelled) if name in ARCHITECTURES)


def fingerprint(
    architecture: str, *, cache_dir: Path | None = None, cancelled: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Versions and sha256 of everything that shapes the machine code; a missing part says so (see :func:`check`).

    ``cache_dir`` keeps the hashes of big files between processes, by path, size and time of change. Raises Cancelled
    when ``cancelled()`` says so.
    """
    hashes = FileHashes(cache_dir)
    described = _parts(_described(hashes, cancelled), architecture, hashes)
    hashes.save()
    return described


def toolchain_key(compiler: CudaCompiler, architecture: str, cache_dir: Path) -> str:
    """What tells one toolchain from another for the artifact store: the sha256 of the fingerprint's document.

    Compilers of one version differ in patches and headers, TileLang's collectives are headers too, and facts are read
    by our own sources. Raises ToolchainUnavailable.
    """
    hashes = FileHashes(cache_dir)
    described = _parts(compiler.describe(hashes.sha256, cancelled=lambda: False), architecture, hashes)
    hashes.save()
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _parts(compiler: Mapping[str, Any], architecture: str, hashes: FileHashes) -> dict[str, Any]:
    """Everything that shapes the machine code and the facts that are read from it."""
    return {
        "compiler": dict(compiler),
        "architecture": architecture,
        "tilelang": describe_tilelang(hashes),
        "lowering_sha256": lowering_sha256("cuda"),
    }


def _described(hashes: FileHashes, cancelled: Callable[[], bool]) -> dict[str, Any]:
    try:
        with contextlib.closing(cuda_compiler()) as compiler:
            return compiler.describe(hashes.sha256, cancelled=cancelled)
    except ToolchainUnavailable as error:
        return {"unavailable": str(error)}


def _unsuitable(compiler: CudaCompiler, cancelled: Callable[[], bool]) -> str | None:
    """Why versions do not fit."""
    major, minor = compiler.version(cancelled=cancelled)
    if major != MAJOR_VERSION:
        return f"{compiler.name} is of CUDA {major}.{minor}; CUDA {MAJOR_VERSION} is needed"
    tool_major, tool_minor = nvdisasm_version(cancelled=cancelled)
    if tool_major != MAJOR_VERSION:
        return f"nvdisasm is of CUDA {tool_major}.{tool_minor}; CUDA {MAJOR_VERSION} is needed"
    return None


def _unknown(compiler: CudaCompiler, architecture: str, cancelled: Callable[[], bool]) -> str | None:
    """Why an architecture cannot be built for."""
    if (reason := unknown_limits(architecture)) is not None:
        return reason
    known = compiler.architectures(cancelled=cancelled)
    if architecture not in known:
        return f"{compiler.name} does not know {architecture}; it knows {', '.join(known)}"
    return None


def failing(
    compiler: CudaCompiler,
    architecture: str,
    *,
    timeout_seconds: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> str | None:
    """Why a kernel of one line does not get as far as its facts; None when it does. Raises as ``compile``.

    ``timeout_seconds`` is ``CHECK_SECONDS``, or less.
    """
    seconds = CHECK_SECONDS if timeout_seconds is None else min(CHECK_SECONDS, timeout_seconds)
    text = batch_text([Member(symbol=_CHECK_SYMBOL, cuda_text=_CHECK_TEXT)])
    try:
        compiled = compiler.compile(text, architecture=architecture, timeout_seconds=seconds, cancelled=cancelled)
        read_facts(compiled, [_CHECK_SYMBOL])
    except CompileError as error:
        words = " ".join(str(value).strip() for value in error.detail.values())
        return f"{compiler.name} cannot compile a trivial kernel: {error.reason}: {words[:600]}"
    except ValueError as error:
        return f"what {compiler.name} makes of a trivial kernel cannot be read: {error}"
    return None

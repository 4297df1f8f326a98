"""The C compiler and TileLang as files on this machine: where they are, whether they work, what exactly they are.

Imports no TileLang: a fingerprint is read from files and package metadata, so the service process can ask for it.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search.children.scratch import scratch_folder
from search.errors import ToolchainUnavailable
from search.lowering.command import run_command
from search.lowering.file_hashes import FileHashes
from search.lowering.missing_compiler import missing_compiler
from search.lowering.sources import lowering_sha256
from search.lowering.tilelang_package import NO_TILELANG, describe_tilelang, tilelang_folder

HEADER = Path(__file__).with_name("tuner.h")
_X86_FLAGS = ("-mprefer-vector-width=512", "-fcf-protection=none")
COMPILE_FLAGS: tuple[str, ...] = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    *(_X86_FLAGS if platform.machine() == "x86_64" else ()),
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fPIC",
    # Distributions switch these on by default; they cost time inside kernels and protect nothing here.
    "-fno-stack-protector",
    "-fno-stack-clash-protection",
    # One section per kernel, and no kernel replaced by a jump to its twin: code is compared section by section.
    "-ffunction-sections",
    "-fno-ipa-icf",
)
"""Never -ffast-math: it is wrong on NaN and infinite rows, and loading such a library sets flush-to-zero."""
LINK_FLAGS: tuple[str, ...] = ("-shared", "-s")
LIBRARIES: tuple[str, ...] = ("-lm",)
ANSWER_SECONDS = 5.0
"""A compiler that takes longer for a question or a trivial program is taken for broken."""
_PROGRAM = '#include "tuner.h"\nint main(void) { return tuner_exp(0.0f) == 1.0f ? 0 : 1; }\n'


def compiler() -> str:
    """Absolute path of the C compiler: ``TUNER_CC`` or ``gcc``. Raises ToolchainUnavailable."""
    wanted = os.environ.get("TUNER_CC") or "gcc"
    found = shutil.which(wanted)
    if found is None:
        raise ToolchainUnavailable(missing_compiler("C compiler", wanted, "install gcc or set TUNER_CC to one"))
    return found


def objdump() -> str:
    """Absolute path of the disassembler (part of binutils, which gcc needs). Raises ToolchainUnavailable."""
    found = shutil.which("objdump")
    if found is None:
        raise ToolchainUnavailable("objdump not found; install binutils")
    return found


def check(*, work_dir: Path | None = None, cancelled: Callable[[], bool] = lambda: False) -> str | None:
    """Why this toolchain cannot build kernels, or None: compiles and runs a program of two lines in ``work_dir``.

    Takes ``ANSWER_SECONDS`` at most when it hangs. Raises Cancelled when ``cancelled()`` says so.
    """
    if tilelang_folder() is None:
        return NO_TILELANG
    try:
        cc = compiler()
        objdump()
    except ToolchainUnavailable as error:
        return str(error)
    with scratch_folder("check", work_dir) as folder:
        source, program = Path(folder, "check.c"), Path(folder, "check")
        source.write_text(_PROGRAM)
        command = [cc, *COMPILE_FLAGS, "-I", str(HEADER.parent), str(source), "-o", str(program), *LIBRARIES]
        for step, words in (("compile", command), ("run", [str(program)])):
            try:
                failure = run_command(words, timeout_seconds=ANSWER_SECONDS, cancelled=cancelled).failure
            except ToolchainUnavailable as error:
                failure = str(error)
            if failure is not None:
                return f"C compiler {cc}: cannot {step} a trivial program: {failure}"
    return None


def fingerprint(*, cache_dir: Path | None = None, cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Versions and sha256 of everything that shapes the machine code; a missing part says so (see :func:`check`).

    ``cache_dir`` keeps the hashes of big files between processes, by path, size and time of change. Raises Cancelled
    when ``cancelled()`` says so.
    """
    hashes = FileHashes(cache_dir)
    described = {
        "compiler": _compiler(hashes, cancelled),
        "tilelang": describe_tilelang(hashes),
        "libc": " ".join(platform.libc_ver()),
        "flags": [*COMPILE_FLAGS, *LINK_FLAGS, *LIBRARIES],
        "lowering_sha256": lowering_sha256("cpu"),
    }
    hashes.save()
    return described


def _compiler(hashes: FileHashes, cancelled: Callable[[], bool]) -> dict[str, Any]:
    try:
        cc = compiler()
        version = _answer([cc, "--version"], cancelled).splitlines()
        files = {"driver": cc}
        for program in ("cc1", "as", "ld"):
            path = shutil.which(_answer([cc, f"-print-prog-name={program}"], cancelled).strip())
            if path:
                files[program] = path
    except ToolchainUnavailable as error:
        return {"unavailable": str(error)}
    return {
        "version": version[0] if version else "unknown",
        "sha256": {name: hashes.sha256(path) for name, path in files.items()},
    }


def _answer(command: list[str], cancelled: Callable[[], bool]) -> str:
    done = run_command(command, timeout_seconds=ANSWER_SECONDS, cancelled=cancelled)
    if done.failure is not None:
        raise ToolchainUnavailable(f"C compiler {' '.join(command)}: {done.failure}")
    return done.stdout

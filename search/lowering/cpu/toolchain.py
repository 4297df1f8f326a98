"""The C compiler and TileLang as files on this machine: where they are, whether they work, what exactly they are.

Imports no TileLang: a fingerprint is read from files and package metadata, so the service process can ask for it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search.errors import ToolchainUnavailable
from search.lowering.command import run_command
from search.lowering.cpu.file_hashes import FileHashes

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
_NO_TILELANG = "TileLang is not installed; install the extra 'tune'"
ANSWER_SECONDS = 5.0
"""A compiler that takes longer for a question or a trivial program is taken for broken."""
_PROGRAM = '#include "tuner.h"\nint main(void) { return tuner_exp(0.0f) == 1.0f ? 0 : 1; }\n'


def compiler() -> str:
    """Absolute path of the C compiler: ``TUNER_CC`` or ``gcc``. Raises ToolchainUnavailable."""
    wanted = os.environ.get("TUNER_CC") or "gcc"
    found = shutil.which(wanted)
    if found is None:
        raise ToolchainUnavailable(f"C compiler {wanted!r} not found; install gcc or set TUNER_CC to one")
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
    if importlib.util.find_spec("tilelang") is None:
        return _NO_TILELANG
    try:
        cc = compiler()
        objdump()
    except ToolchainUnavailable as error:
        return str(error)
    with tempfile.TemporaryDirectory(prefix="tuner-check-", dir=work_dir) as folder:
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
        "tilelang": _tilelang(hashes),
        "libc": " ".join(platform.libc_ver()),
        "flags": [*COMPILE_FLAGS, *LINK_FLAGS, *LIBRARIES],
        "lowering_sha256": lowering_sha256(),
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


def _tilelang(hashes: FileHashes) -> dict[str, Any]:
    spec = importlib.util.find_spec("tilelang")
    if spec is None or not spec.submodule_search_locations:
        return {"unavailable": _NO_TILELANG}
    folder = Path(next(iter(spec.submodule_search_locations)))
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


def lowering_sha256() -> str:
    """sha256 over our own sources that decide what code a schedule becomes."""
    root = Path(__file__).resolve().parents[2]
    paths = {
        *root.glob("lowering/*.py"),
        *root.glob("lowering/cpu/*.py"),
        HEADER.resolve(),
        *root.glob("planning/*.py"),
        *root.glob("program/*.py"),
        root / "space" / "uses.py",
    }
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _answer(command: list[str], cancelled: Callable[[], bool]) -> str:
    done = run_command(command, timeout_seconds=ANSWER_SECONDS, cancelled=cancelled)
    if done.failure is not None:
        raise ToolchainUnavailable(f"C compiler {' '.join(command)}: {done.failure}")
    return done.stdout

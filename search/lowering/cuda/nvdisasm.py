"""nvdisasm: the machine code of a cubin as text. From PyPI, from the PATH, or from the toolkit that has the nvcc."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from search.children.scratch import scratch_folder
from search.errors import ToolchainUnavailable
from search.lowering.command import CommandTimeout, run_command
from search.lowering.cuda import wheels
from search.lowering.cuda.nvcc import nvcc_path

LISTING_SECONDS = 60.0
ANSWER_SECONDS = 5.0
_VERSION = re.compile(r"release (\d+)\.(\d+)")


def nvdisasm() -> str:
    """Absolute path. Raises ToolchainUnavailable."""
    packaged = wheels.wheel_file(wheels.NVDISASM, "bin/nvdisasm")
    found = str(packaged) if packaged is not None else shutil.which("nvdisasm") or _beside_nvcc()
    if found is None:
        raise ToolchainUnavailable("nvdisasm not found; install the extra 'cuda' or a full CUDA toolkit")
    return found


def _beside_nvcc() -> str | None:
    """That of the nvcc's own folder: a toolkit that is not on the PATH, or whose nvcc alone is linked there."""
    compiler = nvcc_path()
    return None if compiler is None else shutil.which(str(Path(compiler).resolve().with_name("nvdisasm")))


def disassemble(cubin: bytes) -> str:
    """Every kernel's code as text. Raises ToolchainUnavailable, ValueError when nvdisasm refuses or takes too long."""
    with scratch_folder("sass") as folder:
        path, listing = Path(folder, "batch.cubin"), Path(folder, "batch.sass")
        path.write_bytes(cubin)
        with listing.open("wb") as out:
            command = [nvdisasm(), "--print-code", str(path)]
            try:
                done = run_command(command, timeout_seconds=LISTING_SECONDS, output=out)
            except CommandTimeout as error:  # this cubin's doing: nvdisasm itself was tried before
                raise ValueError(str(error)) from None
        if done.failure is not None:
            raise ValueError(f"nvdisasm: {done.failure}")
        return listing.read_text(errors="replace")


def nvdisasm_version(*, cancelled: Callable[[], bool] = lambda: False) -> tuple[int, int]:
    """Major and minor version of CUDA that it belongs to. Raises ToolchainUnavailable, Cancelled."""
    path = nvdisasm()
    done = run_command([path, "--version"], timeout_seconds=ANSWER_SECONDS, cancelled=cancelled)
    found = _VERSION.search(done.stdout)
    if done.failure is not None or found is None:
        raise ToolchainUnavailable(f"{path} --version: {done.failure or 'names no release'}")
    return int(found.group(1)), int(found.group(2))

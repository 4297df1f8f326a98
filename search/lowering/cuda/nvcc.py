"""nvcc: a command that starts half a dozen others, so that it is run, bounded and killed as a group."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from search.children.scratch import scratch_folder
from search.errors import ToolchainUnavailable
from search.lowering.command import CommandTimeout, Ended, run_command
from search.lowering.cuda.compiler import Compiled, CompileError, excerpt
from search.lowering.cuda.headers import headers_sha256, template_folders

COMPILER_VARIABLE = "TUNER_NVCC"
NO_NVCC = "none"
USUAL_NVCC = "/usr/local/cuda/bin/nvcc"
NVCC_FLAGS: tuple[str, ...] = ("-std=c++20",)
"""TileLang's own. Never --use_fast_math: it changes what the numbers do."""
_REPORT_FLAGS = ("-Xptxas", "-v", "-w")
"""They leave the code alone: what each kernel takes is printed, warnings are not."""
ANSWER_SECONDS = 5.0
"""An nvcc that takes longer to say its version is taken for broken."""
_VERSION = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_ARCHITECTURE = re.compile(r"^sm_\d+$", re.MULTILINE)
_SETTING = re.compile(r"^#\$ (\w+)=(.*)$", re.MULTILINE)
_PREPROCESSOR = re.compile(r'^#\$ "?([^\s"]+)"? .*\s-E\s', re.MULTILINE)


def nvcc_path() -> str | None:
    """The nvcc that ``TUNER_NVCC`` names, and no other; unset, that of the PATH, else the usual one. None: none."""
    wanted = os.environ.get(COMPILER_VARIABLE)
    if wanted == NO_NVCC:
        return None
    return shutil.which(wanted) if wanted else shutil.which("nvcc") or shutil.which(USUAL_NVCC)


class Nvcc:
    """A :class:`search.lowering.cuda.compiler.CudaCompiler`: the nvcc at ``path``."""

    name: Literal["nvcc", "nvrtc"] = "nvcc"

    def __init__(self, path: str) -> None:
        self.path = path

    def compile(
        self,
        cuda_text: str,
        *,
        architecture: str,
        timeout_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Compiled:
        """One call; see :meth:`CudaCompiler.compile`."""
        with scratch_folder("nvcc") as name:
            folder = Path(name)
            (folder / "batch.cu").write_text(cuda_text)
            done = self._run(architecture, folder, timeout_seconds, cancelled)
            printed = done.stderr + done.stdout
            if done.returncode != 0:
                if os.strerror(errno.ENOSPC) in printed:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
                words = excerpt(printed) if printed.strip() else str(done.failure)
                raise CompileError("compiler_error", {"exit_code": done.returncode, "compiler_output": words}, printed)
            cubin = folder / "batch.cubin"
            if not cubin.is_file():
                words = excerpt(f"{printed}\nexit status 0, but no cubin was written".strip())
                raise CompileError("compiler_error", {"exit_code": 0, "compiler_output": words}, printed)
            return Compiled(cubin=cubin.read_bytes(), report=done.stderr)

    def architectures(self, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """What ``nvcc --list-gpu-code`` says."""
        found = _ARCHITECTURE.findall(self._answer(["--list-gpu-code"], cancelled))
        return tuple(dict.fromkeys(found))

    def version(self, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[int, int]:
        """What ``nvcc --version`` says."""
        major, minor, _ = self._release(cancelled)
        return int(major), int(minor)

    def describe(self, sha256: Callable[[str], str], *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Version, the programs that it starts, the headers of its toolkit, and the host's preprocessor."""
        *_, version = self._release(cancelled)
        with scratch_folder("nvcc") as name:
            source = Path(name, "kernel.cu")
            source.write_text("")
            done = run_command(
                [self.path, "-dryrun", "-cubin", str(source), "-o", str(Path(name, "kernel.cubin"))],
                timeout_seconds=ANSWER_SECONDS,
                cancelled=cancelled,
            )
        settings = dict(_SETTING.findall(done.stderr))
        if done.failure is not None or "_HERE_" not in settings or "TOP" not in settings:
            said = done.failure or "exit status 0"
            raise ToolchainUnavailable(f"{self.path} ({version}) -dryrun does not say where its toolkit is: {said}")
        here, top = Path(settings["_HERE_"]), Path(settings["TOP"])
        parts = {
            "nvcc": here / "nvcc",
            "cicc": top / "nvvm" / "bin" / "cicc",
            "ptxas": here / "ptxas",
            "libdevice": top / "nvvm" / "libdevice" / "libdevice.10.bc",
        }
        preprocessor = _PREPROCESSOR.search(done.stderr)
        return {
            "name": self.name,
            "version": version,
            "sha256": {part: sha256(str(path)) for part, path in parts.items() if path.is_file()},
            "headers_sha256": headers_sha256(top / "include", sha256),
            "host_compiler": _version_line(preprocessor.group(1), cancelled) if preprocessor else "unknown",
            "flags": list(NVCC_FLAGS),
        }

    def close(self) -> None:
        """Nothing to give up."""

    def _run(self, architecture: str, folder: Path, timeout_seconds: float, cancelled: Callable[[], bool]) -> Ended:
        words = [self.path, "-cubin", f"-arch={architecture}", *NVCC_FLAGS, *_REPORT_FLAGS]
        words += [f"-I{include}" for include in template_folders()]
        try:
            return run_command(
                [*words, "batch.cu", "-o", "batch.cubin"],
                timeout_seconds=timeout_seconds,
                cancelled=cancelled,
                folder=folder,
                # What it leaves behind when it is killed goes with the folder.
                environment={"TMPDIR": str(folder)},
            )
        except CommandTimeout:
            raise CompileError("compile_timeout", {"limit_seconds": timeout_seconds}) from None
        except ToolchainUnavailable as error:
            raise CompileError("compiler_not_started", {"message": str(error)}) from error

    def _release(self, cancelled: Callable[[], bool]) -> tuple[str, str, str]:
        said = self._answer(["--version"], cancelled)
        found = _VERSION.search(said)
        if found is None:
            raise ToolchainUnavailable(f"{self.path} --version names no release: {said.strip()[-200:]!r}")
        return found.group(1), found.group(2), found.group(3)

    def _answer(self, words: list[str], cancelled: Callable[[], bool]) -> str:
        done = run_command([self.path, *words], timeout_seconds=ANSWER_SECONDS, cancelled=cancelled)
        if done.failure is not None:
            raise ToolchainUnavailable(f"{' '.join([self.path, *words])}: {done.failure}")
        return done.stdout


def command_by_hand(architecture: str) -> tuple[str, ...]:
    """Words that compile ``kernel.cu`` to ``kernel.cubin`` in a shell where ``python`` has TileLang installed."""
    package = (
        "$(python -c 'import importlib.util as u; print(u.find_spec(\"tilelang\").submodule_search_locations[0])')"
    )
    includes = (f'-I"{package}/src"', f'-I"{package}/3rdparty/cutlass/include"')
    return ("nvcc", "-cubin", f"-arch={architecture}", *NVCC_FLAGS, "-w", *includes, "kernel.cu", "-o", "kernel.cubin")


def _version_line(compiler: str, cancelled: Callable[[], bool]) -> str:
    done = run_command([compiler, "--version"], timeout_seconds=ANSWER_SECONDS, cancelled=cancelled)
    return done.stdout.splitlines()[0] if done.stdout else "unknown"

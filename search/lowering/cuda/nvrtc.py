"""NVRTC from PyPI: the compiler where there is no nvcc. It runs in a child that is killed when it hangs."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from search.children.child import Child, ChildGone, ChildTimeout
from search.errors import ToolchainUnavailable
from search.lowering.cuda import wheels
from search.lowering.cuda.compiler import Compiled, CompileError, excerpt
from search.lowering.cuda.headers import cuda_folders, headers_sha256, template_folders

NVRTC_FLAGS: tuple[str, ...] = ("-default-device", "-std=c++20")
"""TileLang's own."""
_REPORT_FLAGS = ("--ptxas-options=-v", "--disable-warnings")
_FIRST_LINE = "#include <tl_templates/cuda/nvrtc_std.h>\n"
"""What TileLang puts before every text that NVRTC compiles: the little of <type_traits> that its headers need."""
ANSWER_SECONDS = 10.0
"""A child that takes longer to load the library and say its version is taken for broken."""
_FOLDER_PREFIX = "tuner-nvrtc-"
_MODULE = "search.lowering.cuda.nvrtc_child"


class Nvrtc:
    """A :class:`search.lowering.cuda.compiler.CudaCompiler`: NVRTC of the installed package.

    Raises ToolchainUnavailable when it is not installed, or has no headers of CUDA's: it brings none.
    """

    name: Literal["nvcc", "nvrtc"] = "nvrtc"

    def __init__(self) -> None:
        library = wheels.wheel_library(wheels.NVRTC, "libnvrtc")
        builtins = wheels.wheel_library(wheels.NVRTC, "libnvrtc-builtins")
        if library is None or builtins is None:
            raise ToolchainUnavailable(
                f"no CUDA compiler: nvcc was not found and {wheels.NVRTC} is not installed; "
                "install a CUDA toolkit (or set TUNER_NVCC to its nvcc), or the extra 'cuda'"
            )
        try:
            cuda_folders()
        except ToolchainUnavailable as error:
            raise ToolchainUnavailable(f"NVRTC has no CUDA headers: {error}") from None
        self.library, self.builtins = library, builtins
        self._child: Child | None = None
        self._headers_dir: str | None = None
        """Of precompiled headers, some 90 MB each: they belong to the child that wrote them."""
        self._ends: weakref.finalize[..., Nvrtc] | None = None

    def compile(
        self,
        cuda_text: str,
        *,
        architecture: str,
        timeout_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Compiled:
        """One call; see :meth:`CudaCompiler.compile`. A child that hangs or dies is replaced by the next call."""
        try:
            options = [*NVRTC_FLAGS, f"--gpu-architecture={architecture}", *_REPORT_FLAGS, *_includes()]
            child = self._started()
            command = {
                "source": _FIRST_LINE + cuda_text,
                "options": [*options, "-pch", f"-pch-dir={self._headers_dir}"],
            }
            answer = self._asked(child, command, timeout_seconds, cancelled)
        except ChildTimeout:
            self.close()
            raise CompileError("compile_timeout", {"limit_seconds": timeout_seconds}) from None
        except ChildGone as gone:
            self.close()
            raise CompileError("compiler_crashed", gone.exit.document(), gone.exit.log_tail) from None
        except ToolchainUnavailable as error:
            raise CompileError("compiler_not_started", {"message": str(error)}) from error
        if answer["error"] is not None:
            if os.strerror(errno.ENOSPC) in answer["log"]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._headers_dir)
            detail = {"error": answer["error"], "compiler_output": excerpt(answer["log"])}
            raise CompileError("compiler_error", detail, answer["log"])
        return Compiled(cubin=base64.b64decode(answer["cubin"]), report=answer["log"])

    def architectures(self, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """What ``nvrtcGetSupportedArchs`` says."""
        return tuple(f"sm_{number}" for number in sorted(self._about(cancelled)["architectures"]))

    def version(self, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[int, int]:
        """What ``nvrtcVersion`` says."""
        major, minor = self._about(cancelled)["version"]
        return int(major), int(minor)

    def describe(self, sha256: Callable[[str], str], *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Version, the libraries, and the headers that it is given."""
        packaged = wheels.header_folders() is not None
        return {
            "name": self.name,
            "version": wheels.wheel_version(wheels.NVRTC),
            "sha256": {path.name: sha256(str(path)) for path in (self.library, self.builtins)},
            "headers": {name: wheels.describe_wheel(name) for name in wheels.HEADERS}
            if packaged
            else headers_sha256(cuda_folders()[0], sha256),
            "flags": list(NVRTC_FLAGS),
        }

    def close(self) -> None:
        """Kill the child and remove its headers; done at the end of this process too."""
        self._child = self._headers_dir = None
        if self._ends is not None:
            self._ends()

    def _about(self, cancelled: Callable[[], bool]) -> Mapping[str, Any]:
        try:
            return self._asked(self._started(), {"about": True}, ANSWER_SECONDS, cancelled)
        except ChildTimeout:
            self.close()
            raise ToolchainUnavailable(f"{self.library} did not answer within {ANSWER_SECONDS:g} s") from None
        except ChildGone as gone:
            self.close()
            raise ToolchainUnavailable(f"{self.library} ended its process: {gone.exit.document()}") from None

    def _asked(
        self,
        child: Child,
        command: Mapping[str, Any],
        timeout_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Any]:
        child.send(command)
        answer = child.receive(timeout_seconds=timeout_seconds, cancelled=cancelled)
        if "failed" in answer:
            raise ToolchainUnavailable(f"{self.library}: {answer['failed']}")
        return answer

    def _started(self) -> Child:
        if self._child is None or not self._child.alive:
            self.close()
            _remove_abandoned()
            self._headers_dir = tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-")
            self._child = Child.start(_MODULE, [str(self.library), str(self.builtins)])
            self._ends = weakref.finalize(self, _end, self._child, self._headers_dir)
        return self._child


def _end(child: Child, folder: str) -> None:
    child.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the headers of processes that were killed: nobody else would."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        owner = folder.name.removeprefix(_FOLDER_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and not Path("/proc", owner).exists():
                shutil.rmtree(folder, ignore_errors=True)


def _includes() -> list[str]:
    return [f"-I{folder}" for folder in (*template_folders(), *cuda_folders())]

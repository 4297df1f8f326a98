"""What a simulation is built with: g++, CUDA's headers, TileLang's headers, and our own, precompiled once.

Imports neither TileLang nor CUDA: they are files here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from search.errors import ToolchainUnavailable
from search.lowering.command import CommandTimeout, Ended, run_command
from search.lowering.cuda.headers import cuda_folders, template_folders
from search.lowering.missing_compiler import missing_compiler
from search.measuring.simt.excerpts import COMMON_HEADER, REDUCE_HEADER, excerpts

_OWN_HEADERS = ("simt.h", "cuda.h", "sanitizer.h", "runtime.h", "fibers.h")
_TYPES = ("cuda_fp16.hpp", "cuda_bf16.hpp", "vector_types.h", "cutlass/half.h", "cutlass/bfloat16.h")
COMPILE_FLAGS: tuple[str, ...] = (
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-w",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    # Plain IEEE arithmetic: the oracle's tolerances are about it.
    "-ffp-contract=off",
    "-fno-math-errno",
    # Registers hold anything: see also poison() in cuda.h.
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=bounds,object-size,alignment",
    "-fno-sanitize-recover=all",
    # Fibers change stacks with longjmp, which the hardened one takes for an error.
    "-U_FORTIFY_SOURCE",
    "-fno-stack-protector",
    *(("-fcf-protection=none",) if platform.machine() == "x86_64" else ()),
)
LINK_FLAGS: tuple[str, ...] = ("-shared", "-s", "-lm")
_HEADER_SECONDS = 120.0
CHECK_SECONDS = 30.0
"""A compiler that takes so long for one line is broken."""
_TRIVIAL = 'extern "C" int tuner_trivial(int given) { return given + 1; }\n'


@dataclass(frozen=True, kw_only=True)
class SimulationToolchain:
    """A working set: the compiler, where headers are looked for, and the folder with ours, precompiled."""

    compiler: str
    include_folders: tuple[str, ...]
    prelude_folder: Path
    cpus: tuple[int, ...] = ()
    """The CPUs that the compiler may use; none named: any."""
    memory_limit_bytes: int | None = None
    """Of address space, for each process of the compiler's."""

    def run(
        self, command: Sequence[str], *, timeout_seconds: float, cancelled: Callable[[], bool], folder: Path
    ) -> Ended:
        """One call of the compiler, held like every compiler; what it leaves behind is in ``folder``.

        Raises what :func:`search.lowering.command.run_command` raises.
        """
        return run_command(
            command,
            timeout_seconds=timeout_seconds,
            cancelled=cancelled,
            environment={"TMPDIR": str(folder)},
            cpus=self.cpus,
            memory_limit_bytes=self.memory_limit_bytes,
        )

    def compile_command(self, source: str, object_file: str) -> list[str]:
        """argv that makes an object file of a source file that begins with ``#include "simt.h"``."""
        return [self.compiler, *COMPILE_FLAGS, *self._includes(), "-c", source, "-o", object_file]

    def link_command(self, object_file: str, library: str) -> list[str]:
        """argv that makes a shared library. Without -fsanitize: its ends are our own (sanitizer.h)."""
        return [self.compiler, *LINK_FLAGS, object_file, "-o", library]

    def failing(
        self,
        folder: Path,
        *,
        timeout_seconds: float = CHECK_SECONDS,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """Why the compiler makes no library of a program of one line; None when it does.

        What it writes is in ``folder``. Raises as :meth:`run`, but for a compiler that does not end.
        """
        place = Path(tempfile.mkdtemp(prefix="trivial-", dir=folder))
        try:
            source, object_file, library = (str(place / name) for name in ("trivial.cc", "trivial.o", "trivial.so"))
            Path(source).write_text(_TRIVIAL)
            for command in (self.compile_command(source, object_file), self.link_command(object_file, library)):
                done = self.run(command, timeout_seconds=timeout_seconds, cancelled=cancelled, folder=place)
                if done.failure is not None:
                    return f"{self.compiler} cannot compile a trivial program: {done.failure}"
        except CommandTimeout as error:
            return f"{self.compiler} cannot compile a trivial program: {error}"
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return None

    def _includes(self) -> list[str]:
        # The folder with the precompiled header stands first.
        return [f"-I{folder}" for folder in (self.prelude_folder, *self.include_folders)]


def prepare(
    work_dir: Path,
    *,
    cpus: Sequence[int] = (),
    memory_limit_bytes: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> SimulationToolchain:
    """The toolchain, with its precompiled header in ``work_dir`` (made once: a few seconds).

    ``cpus`` and ``memory_limit_bytes`` hold for each of its calls. ToolchainUnavailable says what is missing: g++,
    CUDA's headers, TileLang, or its collective. Raises Cancelled.
    """
    compiler, (tilelang, cutlass), cuda = cxx_compiler(), template_folders(), cuda_folders()
    includes = (*map(str, cuda), str(cutlass))
    files = _prelude_files(tilelang / "tl_templates" / "cuda")
    version = run_command([compiler, "--version"], timeout_seconds=10, cancelled=cancelled)
    if version.failure is not None:
        raise ToolchainUnavailable(f"C++ compiler {compiler}: {version.failure}")
    digest = hashlib.sha256("\0".join([compiler, version.stdout, *includes, *COMPILE_FLAGS]).encode())
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{text}\0".encode())
    for header in (found for folder in includes for name in _TYPES if (found := Path(folder, name)).is_file()):
        digest.update(header.read_bytes())  # an installation may change in its place
    folder = work_dir / "simt" / digest.hexdigest()[:24]
    toolchain = SimulationToolchain(
        compiler=compiler,
        include_folders=includes,
        prelude_folder=folder,
        cpus=tuple(cpus),
        memory_limit_bytes=memory_limit_bytes,
    )
    if not (folder / "simt.h.gch").exists():
        _precompile(toolchain, files, cancelled)
    return toolchain


def cxx_compiler() -> str:
    """Absolute path of the C++ compiler: ``TUNER_CXX`` or ``g++``. Raises ToolchainUnavailable."""
    wanted = os.environ.get("TUNER_CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise ToolchainUnavailable(missing_compiler("C++ compiler", wanted, "install g++ or set TUNER_CXX to one"))
    return found


def _prelude_files(templates: Path) -> dict[str, str]:
    try:
        reduce_text, common_text = ((templates / name).read_text() for name in (REDUCE_HEADER, COMMON_HEADER))
    except OSError as error:
        raise ToolchainUnavailable(f"TileLang's headers cannot be read: {error}") from error
    cut = excerpts(reduce_text, common_text)
    files = {name: Path(__file__).with_name(name).read_text() for name in _OWN_HEADERS}
    return files | {"excerpts_global.inc": cut.global_text, "excerpts_tl.inc": cut.tl_text}


def _precompile(toolchain: SimulationToolchain, files: dict[str, str], cancelled: Callable[[], bool]) -> None:
    """Make the folder of a toolchain, whole or not at all."""
    target = toolchain.prelude_folder
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for name, text in files.items():
            (temporary / name).write_text(text)
        words = [toolchain.compiler, *COMPILE_FLAGS, *(f"-I{folder}" for folder in toolchain.include_folders)]
        header = str(temporary / "simt.h")
        done = toolchain.run(
            [*words, "-x", "c++-header", header, "-o", header + ".gch"],
            timeout_seconds=_HEADER_SECONDS,
            cancelled=cancelled,
            folder=temporary,
        )
        if done.failure is not None:
            raise ToolchainUnavailable(f"{toolchain.compiler} cannot compile the simulator's header: {done.failure}")
        try:
            temporary.rename(target)
        except OSError:
            if not (target / "simt.h.gch").exists():  # else another process was first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

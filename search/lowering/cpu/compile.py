"""Several kernels → one shared library, with facts. One compiler call for a batch; a bad member is found singly."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search.children.scratch import scratch_folder
from search.errors import ToolchainUnavailable
from search.lowering.cpu.dialect import HEADER_INCLUDE, Kernel
from search.lowering.cpu.facts import FunctionFacts, read_facts
from search.lowering.cpu.toolchain import COMPILE_FLAGS, HEADER, LIBRARIES, LINK_FLAGS
from search.lowering.doubt import doubt
from search.outcome import Rejected

OUTPUT_TAIL_CHARS = 2000
_FACT_FLAGS = ("-fstack-usage", "-Wa,-L")
"""They leave the code alone: a file of stack sizes, and the labels of constants kept in the object."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One kernel of a batch under the symbol it will have."""

    symbol: str
    kernel: Kernel


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the compiler made of a batch."""

    data: bytes
    facts: Mapping[str, FunctionFacts]
    """By symbol."""


class CompileError(Exception):
    """The compiler refused a batch or ran out of time."""

    def __init__(self, reason: str, detail: Mapping[str, object]) -> None:
        self.reason, self.detail = reason, dict(detail)
        super().__init__(f"{reason}: {self.detail}")


def compile_members(
    members: Sequence[Member],
    *,
    timeout_seconds: float,
    cc: str,
    progress: Callable[[], None] = lambda: None,
    broken: Callable[[], str | None] | None = None,
) -> tuple[list[tuple[Library, tuple[Member, ...]]], dict[str, Rejected]]:
    """Libraries with their members, and the rejection of each member (by symbol) that does not compile alone.

    ``timeout_seconds`` bounds one compiler call; ``progress`` is called before each. ``broken`` says why the compiler
    fails whatever it is given, or None; it is asked before the first member is blamed, and after the last. Raises
    ToolchainUnavailable when it is broken or cannot be started, OSError when the disk is full: that is nobody's fault.
    """
    built: list[tuple[Library, tuple[Member, ...]]] = []
    rejections: dict[str, Rejected] = {}
    waiting = [tuple(members)]
    while waiting:
        batch = waiting.pop(0)
        progress()
        try:
            built.append((compile_library(batch, timeout_seconds=timeout_seconds, cc=cc), batch))
        except CompileError as error:
            if len(batch) > 1:
                waiting += [(member,) for member in batch]
                continue
            if not rejections:
                doubt(broken, progress)  # before every other member has waited for a compiler that hangs
            rejections[batch[0].symbol] = Rejected(stage="compile", reason=error.reason, detail=error.detail)
    if len(rejections) > 1:
        doubt(broken, progress)
    return built, rejections


def compile_library(members: Sequence[Member], *, timeout_seconds: float, cc: str) -> Library:
    """One shared library of all members. Raises CompileError, ToolchainUnavailable when nothing can be started."""
    with scratch_folder("build") as name:
        folder = Path(name)
        (folder / HEADER.name).write_bytes(HEADER.read_bytes())
        texts = [member.kernel.renamed(member.symbol) for member in members]
        (folder / "batch.c").write_text(HEADER_INCLUDE + "\n" + "\n".join(texts))
        compile_ = [cc, *COMPILE_FLAGS, *_FACT_FLAGS, "-c", "batch.c", "-o", "batch.o"]
        _run(compile_, folder, timeout_seconds)
        _run([cc, *LINK_FLAGS, "batch.o", "-o", "batch.so", *LIBRARIES], folder, timeout_seconds)
        symbols = [member.symbol for member in members]
        try:
            facts = read_facts(folder / "batch.o", folder / "batch.su", symbols)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CompileError("unreadable_object", {"message": str(error)[-OUTPUT_TAIL_CHARS:]}) from error
        return Library(data=(folder / "batch.so").read_bytes(), facts=facts)


def _run(command: Sequence[str], folder: Path, timeout_seconds: float) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError("compile_timeout", {"limit_seconds": timeout_seconds}) from None
    except OSError as error:
        raise ToolchainUnavailable(f"C compiler {command[0]} cannot be started: {error.strerror or error}") from error
    if done.returncode != 0:
        output = (done.stderr + done.stdout)[-OUTPUT_TAIL_CHARS:]
        if os.strerror(errno.ENOSPC) in output:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        raise CompileError("compiler_error", {"exit_code": done.returncode, "compiler_output": output})

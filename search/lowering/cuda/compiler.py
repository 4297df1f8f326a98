"""A CUDA compiler as what compiles a batch needs it: text in, cubin and ptxas's report out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

OUTPUT_TAIL_CHARS = 2000


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a compiler made of one text."""

    cubin: bytes
    report: str
    """What ptxas said of each kernel (``--ptxas-options=-v``)."""


class CompileError(Exception):
    """The compiler refused a text (``compiler_error``), ran out of time (``compile_timeout``) or died.

    ``printed`` is all that was kept of its words: they may name the kernels that are to blame.
    """

    def __init__(self, reason: str, detail: Mapping[str, object], printed: str = "") -> None:
        self.reason, self.detail, self.printed = reason, dict(detail), printed
        super().__init__(f"{reason}: {self.detail}")


class CudaCompiler(Protocol):
    """nvcc or NVRTC. One call at a time. Close it when done: it may hold a child and a folder."""

    name: Literal["nvcc", "nvrtc"]

    def compile(
        self,
        cuda_text: str,
        *,
        architecture: str,
        timeout_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Compiled:
        """Compile one text for an architecture (``sm_90``).

        Raises CompileError, Cancelled, OSError when the disk is full.
        """
        ...

    def architectures(self, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """The architectures it can compile for, oldest first. Raises ToolchainUnavailable, Cancelled."""
        ...

    def version(self, *, cancelled: Callable[[], bool] = lambda: False) -> tuple[int, int]:
        """Major and minor version of CUDA. Raises ToolchainUnavailable, Cancelled."""
        ...

    def describe(self, sha256: Callable[[str], str], *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Versions and hashes of what shapes the code; ``sha256`` hashes a file. Raises ToolchainUnavailable."""
        ...

    def close(self) -> None:
        """Give up what it holds. It may be used again."""
        ...


def excerpt(printed: str) -> str:
    """The compiler's words from its first error on, cut: what follows from it is rarely more telling."""
    lines = printed.splitlines()
    first = next((at for at, line in enumerate(lines) if re.search(r"\berror\b|\bfatal\b", line)), None)
    return printed[-OUTPUT_TAIL_CHARS:] if first is None else "\n".join(lines[first:])[:OUTPUT_TAIL_CHARS]

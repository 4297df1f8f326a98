"""Several CUDA kernels → cubins with facts. One compiler call for a batch; a bad member is found and stands alone.

A failed batch is split, and nobody is blamed before it has failed alone. Where the compiler's words name kernels,
those are tried alone and the others stay together; else a refused batch is halved. After one that ran out of time (the
compilers say nothing then) each is tried alone: halves would wait for the guilty one again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from search.errors import ToolchainUnavailable
from search.lowering.cuda.batch import Member as Member
from search.lowering.cuda.batch import batch_text, groups, named_in
from search.lowering.cuda.compiler import OUTPUT_TAIL_CHARS, CompileError, CudaCompiler
from search.lowering.cuda.facts import KernelFacts, read_facts
from search.lowering.cuda.ptxas import shared_overflow
from search.lowering.doubt import doubt
from search.outcome import Rejected

BATCH = 32
"""Kernels per compiler call: starting nvcc's tools and reading the headers takes what 30 kernels do."""
_SOLO_FAILURES = ("compile_timeout", "compiler_error", "compiler_crashed", "unreadable_cubin")
"""What a member can be to blame for. Anything else is the toolchain's."""


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """What the compiler made of a batch."""

    data: bytes
    facts: Mapping[str, KernelFacts]
    """By symbol."""


def compile_members(
    members: Sequence[Member],
    *,
    architecture: str,
    compiler: CudaCompiler,
    timeout_seconds: float,
    progress: Callable[[], None] = lambda: None,
    broken: Callable[[], str | None] | None = None,
) -> tuple[list[tuple[Cubin, tuple[Member, ...]]], dict[str, Rejected]]:
    """Cubins with their members, and the rejection of each member (by symbol) that does not compile alone.

    ``timeout_seconds`` bounds one compiler call, so also a member alone; ``progress`` is called before each. Symbols
    must differ. ``broken`` says why the compiler fails whatever it is given, or None; it is asked before the first
    member is blamed, and after the last. Raises ToolchainUnavailable when the compiler is broken or cannot be started,
    OSError when the disk is full.
    """
    built: list[tuple[Cubin, tuple[Member, ...]]] = []
    rejections: dict[str, Rejected] = {}
    blamed = 0
    waiting = list(reversed(groups(members)))
    while waiting:
        batch = waiting.pop()
        progress()
        try:
            cubin = _compile(batch, architecture=architecture, compiler=compiler, timeout_seconds=timeout_seconds)
            built.append((cubin, batch))
        except CompileError as error:
            if error.reason not in _SOLO_FAILURES:
                raise ToolchainUnavailable(str(error.detail.get("message", error))) from error
            if len(batch) == 1:
                rejection = _rejected(error)
                if rejection.stage == "compile" and not blamed:
                    doubt(broken, progress)  # before every other member has waited for a compiler that hangs
                blamed += rejection.stage == "compile"
                rejections[batch[0].symbol] = rejection
            else:
                waiting.extend(reversed(_split(batch, error)))
    if blamed > 1:
        doubt(broken, progress)
    return built, rejections


def _compile(batch: Sequence[Member], *, architecture: str, compiler: CudaCompiler, timeout_seconds: float) -> Cubin:
    compiled = compiler.compile(batch_text(batch), architecture=architecture, timeout_seconds=timeout_seconds)
    try:
        facts = read_facts(compiled, [member.symbol for member in batch])
    except ValueError as error:
        raise CompileError("unreadable_cubin", {"message": str(error)[-OUTPUT_TAIL_CHARS:]}) from error
    return Cubin(data=compiled.cubin, facts=facts)


def _split(batch: Sequence[Member], error: CompileError) -> list[tuple[Member, ...]]:
    """Smaller batches of the same members, in order: suspects alone when there are some and not all are."""
    if error.reason == "compile_timeout":
        return [(member,) for member in batch]
    suspects = named_in(error.printed, batch)
    if suspects and len(suspects) < len(batch):
        others = tuple(member for member in batch if member not in suspects)
        return [others, *((member,) for member in suspects)]
    half = len(batch) // 2
    return [tuple(batch[:half]), tuple(batch[half:])]


def _rejected(error: CompileError) -> Rejected:
    """A member's own failure. A kernel whose static shared memory does not fit is no compiler's error."""
    overflow = shared_overflow(error.printed)
    if overflow is not None:
        wanted, limit = overflow
        detail = {"static_shared_bytes": wanted, "limit_bytes": limit, "compiler_output": error.printed[-500:]}
        return Rejected(stage="resources", reason="shared_memory", detail=detail)
    return Rejected(stage="compile", reason=error.reason, detail=error.detail)

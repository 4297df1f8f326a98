"""Several CUDA texts as one: each begins with includes, may define device functions, and ends with its kernel.

Includes are joined. What stands between includes and kernel is written once, so only kernels that share it (or have
none) share a batch. Each kernel keeps its own lines and file name, so that what the compiler says names its kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"\s*#\s*(\w+)")
_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)
_RTC_LIMITS = """\
#ifdef __CUDACC_RTC__
namespace std { using cutlass::platform::numeric_limits; }
#endif
"""
"""NVRTC has no <limits>, and TileLang's infinities of 16-bit types are ``std::numeric_limits``."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One kernel of a batch: a complete CUDA text whose kernel already has its symbol as name."""

    symbol: str
    cuda_text: str


def groups(members: Sequence[Member]) -> list[tuple[Member, ...]]:
    """Members that may share a text, in order: equal in what they define before their kernel, or defining nothing."""
    by_prelude: dict[str, list[Member]] = {}
    for member in members:
        by_prelude.setdefault(_parts(member).prelude, []).append(member)
    plain = by_prelude.pop("", [])
    if not by_prelude:
        return [tuple(plain)] if plain else []
    first, *others = by_prelude.values()
    return [tuple(plain + first), *map(tuple, others)]


def batch_text(members: Sequence[Member]) -> str:
    """One text of members that may share it (see :func:`groups`)."""
    parts = [_parts(member) for member in members]
    includes = list(dict.fromkeys(line for part in parts for line in part.includes))
    prelude = next((part.prelude for part in parts if part.prelude), "")
    kernels = [f'#line 1 "{m.symbol}.cu"\n{part.kernel}' for m, part in zip(members, parts, strict=True)]
    limits = [_RTC_LIMITS] if any("tl_templates" in line for line in includes) else []
    return "\n".join([*includes, *limits, prelude, *kernels])


def named_in(printed: str, members: Sequence[Member]) -> list[Member]:
    """Members whose kernel or file the compiler's words blame: errors in its lines, or ptxas errors that quote it."""
    blamed = "\n".join(line for line in printed.splitlines() if re.search(r"\berror\b", line))
    return [m for m in members if re.search(rf"(?<![\w]){re.escape(m.symbol)}(?:\.cu\(|')", blamed)]


@dataclass(frozen=True, kw_only=True)
class _Parts:
    includes: tuple[str, ...]
    """Include lines, and whole conditional blocks of directives (TileLang puts includes into such)."""
    prelude: str
    kernel: str


def _parts(member: Member) -> _Parts:
    found = _KERNEL.search(member.cuda_text)
    at = len(member.cuda_text) if found is None else found.start()
    includes: list[str] = []
    prelude: list[str] = []
    for block in _blocks(member.cuda_text[:at]):
        directives = [_DIRECTIVE.match(line) for line in block if line.strip()]
        first = directives[0] if directives else None
        is_include = all(directives) and first is not None and first[1] in ("include", "if", "ifdef", "ifndef")
        (includes if is_include else prelude).append("\n".join(block))
    return _Parts(includes=tuple(includes), prelude="\n".join(prelude).strip(), kernel=member.cuda_text[at:])


def _blocks(head: str) -> list[list[str]]:
    """Lines, those of one conditional together; without comments, which may differ where the code does not."""
    out: list[list[str]] = []
    depth = 0
    for line in head.splitlines():
        if line.lstrip().startswith("//"):
            continue
        directive = _DIRECTIVE.match(line)
        word = directive[1] if directive else ""
        if depth == 0:
            out.append([])
        out[-1].append(line)
        depth += word in ("if", "ifdef", "ifndef")
        depth -= word == "endif"
    return out

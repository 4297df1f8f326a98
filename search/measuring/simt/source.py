"""CUDA text as TileLang prints it → C++ text for ``simt.h``. Pure text; what cannot be simulated is refused by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from search.lowering.contract import Argument

_DROPPED_INCLUDE = re.compile(r"<(?:tl_templates/|cutlass/|cute/|cuda|math_constants\.h|cooperative_groups\.h)[^>]*>")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b(?P<file>.*)$", re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b.*$", re.MULTILINE)
_COMMENT_OR_LITERAL = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)

_REFUSED: dict[str, str] = {
    "inline_ptx": r"\b(?:__asm__|asm)\b",
    "atomics": r"\batomic\w*\s*\(|\btl::Atomic\w*|\bAtomic(?:Add|Max|Min|Load|Store)\w*\s*[(<]|\b__nv_atomic",
    "asynchronous_copies": r"\bcp_async|\btma_\w+|\bCUtensorMap|\bmbarrier|\bBarrier\b|\btl::(?:cp|mbar)\w*",
    "tensor_cores": r"\bwgmma|\bmma_\w+|\bwmma\b|\btcgen05|\btl::\w*gemm\w*|\bldmatrix",
    "clusters": r"\bcluster_\w+|\b__cluster_dims__|\bcooperative_groups\b",
    "clocks": r"\bclock(?:64)?\s*\(|\b__nanosleep\b|\bglobaltimer\b",
    "random_numbers": r"\bcurand",
    "active_mask": r"\b__activemask\b",
    "register_reconfiguration": r"\bwarpgroup_\w+|\bsetmaxnreg",
}
"""Construct → what it looks like. Met in the source, each is a reason, never ignored."""

_STATEMENT_WORDS = frozenset(
    {"return", "using", "typedef", "goto", "delete", "throw", "else", "case", "extern", "static"}
)
_DECLARATION = re.compile(
    r"^(?P<indent>[ \t]+)(?:alignas\(\d+\)[ \t]+)?(?P<type>[A-Za-z_][\w:]*)[ \t]+(?P<name>[A-Za-z_]\w*)"
    r"(?P<extents>(?:\[[^\]\n;]+\])*);[ \t]*$",
    re.MULTILINE,
)
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?(?P<type>[\w:]+(?: [\w:]+)?)\s+(?P<name>\w+)\[\s*\];"
)
_STATIC_SHARED = re.compile(
    r"^(?P<indent>[ \t]+)__shared__\s+(?:__align__\(\d+\)\s+)?(?P<type>[\w:]+)\s+(?P<name>\w+)"
    r"(?P<extents>(?:\[[^\]\n;]+\])+);",
    re.MULTILINE,
)


class NotSimulated(Exception):  # noqa: N818 - carries the reason, handled next to the call
    """The text holds what a simulation cannot do; ``constructs`` names it, ``message`` says it in words."""

    def __init__(self, constructs: Sequence[str], message: str) -> None:
        self.constructs, self.message = tuple(constructs), message
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One kernel as C++. Kernels with equal preambles may share a translation unit."""

    symbol: str
    preamble: str
    """What stands before the kernel: imported functors, forward declarations without the kernel's own name."""
    text: str
    """The kernel and its entry."""
    launch_bound: int | None
    """Threads that the kernel declares as its limit."""


def translate(cuda_text: str, symbol: str, arguments: Sequence[Argument]) -> Translation:
    """The C++ text of a kernel. NotSimulated when it holds a construct that has no simulation.

    Local variables without a value are poisoned where they are declared; shared memory comes from the simulator.
    """
    bare = _COMMENT_OR_LITERAL.sub(lambda found: " " if found.group().startswith("/") else '""', cuda_text)
    constructs = [name for name, pattern in _REFUSED.items() if re.search(pattern, bare)]
    if constructs:
        raise NotSimulated(constructs, f"the source holds what a simulation cannot do: {', '.join(constructs)}")
    text = _with_shared_memory(_PRAGMA_ONCE.sub("", _INCLUDE.sub(_include, cuda_text)))
    found = re.search(
        rf"__global__\s+void\s+(?:__launch_bounds__\((?P<bounds>[^()]*)\)\s+)?{re.escape(symbol)}\s*"
        r"\((?P<parameters>[^()]*)\)\s*\{",
        text,
    )
    if found is None:
        raise NotSimulated(["no_kernel"], f"the source defines no kernel {symbol}")
    start = text.rfind("extern", 0, found.start())
    if start < 0 or text[start : found.start()].strip() != 'extern "C"':
        start = found.start()
    preamble = re.sub(rf'(?:extern "C"\s+)?__global__\s+void\s+{re.escape(symbol)}\s*\([^()]*\);', "", text[:start])
    bounds = (found["bounds"] or "").split(",")[0].strip()
    line = text.count("\n", 0, start) + 1
    entry = f"SIMT_KERNEL({symbol}{_values(found['parameters'], symbol, arguments)})"
    body = _DECLARATION.sub(_poisoned, text[found.end() :])
    return Translation(
        symbol=symbol,
        preamble=preamble.strip(),
        text=f'#line {line} "{symbol}.cu"\n{text[start : found.end()]}{body}\n{entry}\n',
        launch_bound=int(bounds) if bounds.isdigit() else None,
    )


def _include(found: re.Match[str]) -> str:
    file = found["file"].strip()
    if _DROPPED_INCLUDE.fullmatch(file) is None:
        raise NotSimulated(["unknown_include"], f"the source includes {file}, which the simulation does not have")
    return ""


def _values(parameters: str, symbol: str, arguments: Sequence[Argument]) -> str:
    """The kernel's arguments taken from the array of pointers, as its own types."""
    listed = [parameter.strip() for parameter in parameters.split(",") if parameter.strip()]
    if len(listed) != len(arguments):
        message = f"kernel {symbol} has {len(listed)} parameters, and is given {len(arguments)} arguments"
        raise NotSimulated(["arguments"], message)
    values = []
    for place, (parameter, argument) in enumerate(zip(listed, arguments, strict=True)):
        kind = " ".join(re.sub(r"\b__restrict__\b", "", parameter).replace("*", " * ").split()[:-1])
        if ("*" in parameter) != (argument.kind == "tensor"):
            raise NotSimulated(["arguments"], f"parameter {parameter!r} of {symbol} is no {argument.kind}")
        values.append(f", ({kind})a[{place}]" if argument.kind == "tensor" else f", *({kind} *)a[{place}]")
    return "".join(values)


def _with_shared_memory(text: str) -> str:
    """Shared arrays become the simulator's: poisoned for each block, the dynamic one before a page that faults."""
    text = _DYNAMIC_SHARED.sub(lambda m: f"{m['type']} *{m['name']} = ({m['type']} *)simt::dynamic_memory;", text)
    text = _STATIC_SHARED.sub(
        lambda m: (
            f"{m['indent']}static simt::StaticShared<{m['type']}{m['extents']}> {m['name']}_shared; "
            f"auto &{m['name']} = {m['name']}_shared.memory;"
        ),
        text,
    )
    if "__shared__" in _COMMENT_OR_LITERAL.sub("", text):
        raise NotSimulated(["shared_memory"], "the source declares shared memory in a way that is not known")
    return text


def _poisoned(found: re.Match[str]) -> str:
    if found["type"] in _STATEMENT_WORDS:
        return found.group()
    # Arrays are read as packets: a GPU's registers have no alignment, and this stack must not lack it.
    alignment = "alignas(16) " if found["extents"] else ""
    declared = f"{found['type']} {found['name']}{found['extents']};"
    return f"{found['indent']}{alignment}{declared} simt::poison({found['name']});"

"""TileLang's own text, cut out of the installed package: what is simulated is the collective that GPUs run.

Nothing of it is copied into this repository. Pure text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from search.errors import ToolchainUnavailable

REDUCE_HEADER = "reduce.h"
COMMON_HEADER = "common.h"
"""Below TileLang's ``src/tl_templates/cuda``."""

_NEEDED = {
    COMMON_HEADER: ("fast_max", "fast_min"),
    REDUCE_HEADER: (
        "SumOp",
        "MaxOp",
        "MaxOpNan",
        "MinOp",
        "MinOpNan",
        "BitAndOp",
        "BitOrOp",
        "BitXorOp",
        "SyncThreadsBarrier",
        "AllReduce",
    ),
}
_WANTED_GLOBAL = {COMMON_HEADER: ("__pack_half2", "__pack_nv_bfloat162")}
_WANTED = {
    COMMON_HEADER: (
        "broadcast",
        "make_vec",
        "from_uint1",
        "to_uint1",
        "pack_half2",
        *(f"{name}2" for name in ("add", "sub", "mul", "max", "min", "abs")),
        "max2_nan",
        "min2_nan",
    ),
    REDUCE_HEADER: ("SumOp_f32x2", "MaxOp_f32x2", "MinOp_f32x2"),
}
"""Taken where they are: code that needs one which is not there does not build."""
_TEMPLATE = r"^(?:template\s*<(?:[^<>]|<[^<>]*>)*>\s*)?"


@dataclass(frozen=True, kw_only=True)
class Excerpts:
    """What goes into ``simt.h``: text for the global namespace, and for namespace ``tl``."""

    global_text: str
    tl_text: str


def excerpts(reduce_text: str, common_text: str) -> Excerpts:
    """Cut the collective and its helpers. ToolchainUnavailable names what cannot be found in TileLang's headers."""
    texts = {REDUCE_HEADER: reduce_text, COMMON_HEADER: common_text}
    wanted = [piece for header, names in _WANTED_GLOBAL.items() for name in names for piece in cut(texts[header], name)]
    pieces: list[str] = []
    for header in (COMMON_HEADER, REDUCE_HEADER):
        optional = [piece for name in _WANTED[header] for piece in cut(texts[header], name)]
        needed: list[str] = []
        for name in _NEEDED[header]:
            found = cut(texts[header], name)
            if not found:
                raise ToolchainUnavailable(
                    f"TileLang's tl_templates/cuda/{header} has no {name}: its collective cannot be simulated; "
                    "install the TileLang version that the extra 'tune' names"
                )
            needed += found
        pieces += [*needed, *optional] if header == COMMON_HEADER else [*optional, *needed]
    return Excerpts(global_text="\n\n".join(wanted) + "\n", tl_text="\n\n".join(pieces) + "\n")


def cut(text: str, name: str) -> list[str]:
    """Every definition of a struct or function of this name, with its ``template`` line, in the order of the text."""
    return list(_definitions(text, rf"{_TEMPLATE}struct\s+{name}\s*\{{")) or list(
        _definitions(text, rf"{_TEMPLATE}(?:TL_PATCH\s+)?TL_DEVICE\s[\w:<>\s]*?\b{name}\s*\([^()]*\)\s*\{{")
    )


def _definitions(text: str, pattern: str) -> Iterator[str]:
    for found in re.finditer(pattern, text, re.MULTILINE):
        end = _closing_brace(text, found.end())
        semicolon = text.startswith(";", end)
        yield text[found.start() : end + semicolon]


def _closing_brace(text: str, start: int) -> int:
    """Index after the brace that closes the one before ``start``; comments and literals are passed over."""
    depth = 1
    for token in re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[{}]", re.DOTALL).finditer(
        text, start
    ):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            return token.end()
    raise ToolchainUnavailable("TileLang's tl_templates/cuda: a definition has no end")

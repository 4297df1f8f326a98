"""A kernel's CUDA text with everything of ours inside: what a compiler, or the simulator, is given."""

from __future__ import annotations

import re

from search.lowering.contract import Source

SYMBOL = "kernel"
"""A kernel's name in canonical text."""
HEADER_NAME = "tuner.cuh"
HEADER_INCLUDE = f'#include "{HEADER_NAME}"\n'
_DIRECTIVE = re.compile(r"\s*#\s*(?:include|pragma once)")


def complete_text(exported: str, header_text: str, symbol: str) -> str:
    """An exported text with our header in place of its include, and the kernel named ``symbol``.

    Only TileLang's includes are left. Texts of different kernels are equal up to the kernel itself but for those, so
    that several can share one.
    """
    includes, found, body = exported.partition(HEADER_INCLUDE)
    if not found:
        raise ValueError(f"the text does not include {HEADER_NAME}")
    header = "\n".join(line for line in header_text.splitlines() if not _DIRECTIVE.match(line))
    renamed = re.sub(rf"\b{SYMBOL}\(", f"{symbol}(", body)
    return f"{includes}\n{header}\n{renamed}"


def complete_source(source: Source, symbol: str) -> str:
    """The complete text of a stored source (see :func:`complete_text`)."""
    return complete_text(source.c_text, source.header_text, symbol)

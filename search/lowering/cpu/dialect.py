"""TileLang text → C text. Imports TileLang on first use: only the lowering child may call this module."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from search.lowering import names
from search.lowering.contract import Argument
from search.lowering.cpu.emit import PASS_CONFIG, SYMBOL
from search.lowering.modules import execute

HEADER_INCLUDE = '#include "tuner.h"\n'
_SIGNATURE = re.compile(rf"^int32_t {SYMBOL}_kernel\(([^)]*)\) \{{", re.M)
_MARK = re.compile(r"TUNER_(SIMD|UNROLL)\((\d*)\);")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Canonical C of one kernel: its own function named ``kernel``, without the header."""

    c_text: str
    arguments: tuple[Argument, ...]

    def renamed(self, symbol: str) -> str:
        """The function under another name, for a batch."""
        return self.c_text.replace(f"int32_t {SYMBOL}(", f"int32_t {symbol}(", 1)


def lower_text(tilelang_text: str) -> Kernel:
    """Run an emitted module and lower its ``kernel``. Raises whatever TileLang raises."""
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG), target:
        module = execute(tilelang_text)
        source = lower(module[SYMBOL], target=target).kernel_source
        return canonical(source, contraction=module.get("CONTRACTION", True), shared=module.get("SHARED", ()))


def canonical(source: str, *, contraction: bool = True, shared: Collection[str] = ()) -> Kernel:
    """TileLang's C with our header, restrict (but on ``shared`` arguments), one symbol, and marks turned into pragmas.

    Without ``contraction`` the compiler makes no fma: what it vectorises and what it leaves over has the same bits.
    """
    match = _SIGNATURE.search(source)
    if match is None:
        raise ValueError("TileLang's C text has no kernel function of the expected form")
    arguments, parameters = [], []
    for parameter in match.group(1).split(","):
        kind, name = parameter.strip().rsplit(" ", 1)
        tensor = kind.endswith("*")
        arguments.append(Argument(name=names.plain(name), kind="tensor" if tensor else "dim"))
        parameters.append(f"{kind}{' __restrict__' if tensor and name not in shared else ''} {name}")
    body = source[match.end() :].rstrip() + "\n"
    if "tuner_stream(" in body:
        body = re.sub(r"  return 0;\n\}\n\Z", "  tuner_stream_fence();\n  return 0;\n}\n", body)
    head = f"int32_t {SYMBOL}({', '.join(parameters)}) {{"
    text = head + _pragmas(body)
    return Kernel(c_text=text if contraction else _uncontracted(text), arguments=tuple(arguments))


def _uncontracted(text: str) -> str:
    """The option is gcc's; clang heeds the standard pragma inside the function, which gcc passes over."""
    text = text.replace("{\n", "{\n#pragma STDC FP_CONTRACT OFF\n", 1)
    return f'#pragma GCC push_options\n#pragma GCC optimize ("fp-contract=off")\n{text}#pragma GCC pop_options\n'


def _pragmas(body: str) -> str:
    """Marks become pragmas where a loop follows; TileLang may have removed a loop of one trip."""
    lines = body.split("\n")
    out: list[str] = []
    for at, line in enumerate(lines):
        mark = _MARK.fullmatch(line.strip())
        if mark is None:
            out.append(line)
            continue
        following = lines[at + 1].strip() if at + 1 < len(lines) else ""
        if following.startswith("for ("):
            pragma = "omp simd" if mark.group(1) == "SIMD" else f"GCC unroll {mark.group(2)}"
            out.append(f"#pragma {pragma}")
    return "\n".join(out)

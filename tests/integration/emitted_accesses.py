"""Counts what emitted C reads and writes: every subscript of a tensor or private tile is noted as the code runs.

A subscript ``g_x[i]`` becomes ``g_x[tuner_noted(number, write, i, 1)]``; nothing else of the text changes, so what is
counted is the text that is built and measured. Partials, row scalars and the packet that waits to be streamed are not
counted, nor are tensors without a column axis: the plan does not count them either.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from search.lowering.cpu.toolchain import HEADER

NAMES = 16
INDICES = 1 << 15
_LOWER = """
import json, sys
from search.lowering.cpu.dialect import lower_text
from search.lowering.modules import load
from search.lowering.torch_left_out import leave_torch_out
leave_torch_out()
load()
kernels = [lower_text(text) for text in json.load(open(sys.argv[1]))]
made = [{"c": kernel.c_text, "arguments": [argument.name for argument in kernel.arguments]} for kernel in kernels]
json.dump(made, open(sys.argv[2], "w"))
"""
_PROLOGUE = f"""#include "tuner.h"
static uint32_t noted[2][{NAMES}][{INDICES}];
static int64_t tuner_noted(int number, int write, int64_t index, int64_t count) {{
  for (int64_t at = index; at < index + count; ++at) {{
    if (at < 0 || at >= {INDICES}) __builtin_trap();
    noted[write][number][at] += 1;
  }}
  return index;
}}
void *counters(void) {{ return noted; }}
"""
_ACCESS = re.compile(r"\b([gp]_\w+)\[")
_DECLARED = re.compile(r"^\s*\w+ (p_\w+)\[(\d+)\];$")


@dataclass(frozen=True, kw_only=True)
class Accesses:
    """How often each element of one tensor or private tile was read and written, by flat index."""

    reads: np.ndarray
    writes: np.ndarray


class CountedKernels:
    """Emitted texts, lowered in one process and compiled without optimisation in one library that counts."""

    def __init__(self, texts: Sequence[str], folder: Path) -> None:
        given, made = folder / "texts.json", folder / "lowered.json"
        given.write_text(json.dumps(texts))
        subprocess.run([sys.executable, "-c", _LOWER, str(given), str(made)], check=True, capture_output=True)
        self._lowered = json.loads(made.read_text())
        self._numbers: list[dict[str, int]] = []
        source, library = folder / "counted.c", folder / "counted.so"
        source.write_text(_PROLOGUE + "".join(self._counting(n, one["c"]) for n, one in enumerate(self._lowered)))
        words = ["gcc", "-std=gnu11", "-O0", "-w", "-fPIC", "-shared", "-I", str(HEADER.parent), str(source)]
        subprocess.run([*words, "-o", str(library), "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.counters.restype = ctypes.c_void_p
        size = 2 * NAMES * INDICES
        flat = (ctypes.c_uint32 * size).from_address(self._library.counters())
        self._counters = np.frombuffer(flat, np.uint32).reshape(2, NAMES, INDICES)

    def declared_scalars(self, number: int) -> int:
        """Scalars of private storage that a kernel declares, for all lanes together."""
        lines = (_DECLARED.match(line) for line in self._lowered[number]["c"].split("\n"))
        return sum(int(line.group(2)) for line in lines if line)

    def run(self, number: int, arrays: Mapping[str, np.ndarray], rows: int) -> dict[str, Accesses]:
        """Call a kernel once. Keys are emitted names: ``g_x`` for a tensor, ``p_e`` for a private tile."""
        self._counters[...] = 0
        arguments = [
            ctypes.c_void_p(arrays[name].ctypes.data) if name in arrays else ctypes.c_int32(rows)
            for name in self._lowered[number]["arguments"]
        ]
        assert self._library[f"kernel_{number}"](*arguments) == 0
        reads, writes = self._counters
        return {
            name: Accesses(reads=reads[at].copy(), writes=writes[at].copy())
            for name, at in self._numbers[number].items()
        }

    def _counting(self, number: int, text: str) -> str:
        """The kernel's own function, its subscripts noted."""
        body = text[text.index("int32_t kernel(") :].replace("int32_t kernel(", f"int32_t kernel_{number}(", 1)
        numbers: dict[str, int] = {}
        self._numbers.append(numbers)
        return "\n".join(_noted(line, numbers) for line in body.split("\n")) + "\n"


def _noted(line: str, numbers: dict[str, int]) -> str:
    if _DECLARED.match(line) or line.startswith("int32_t kernel_"):
        return line
    out, at = "", 0
    streams = re.search(r"tuner_stream\((.*), (\d+)\);$", line)
    for match in _ACCESS.finditer(line):
        end = _closing(line, match.end())
        stored = line[: match.start()].strip() == "" and line[end + 1 :].startswith(" = ")
        count = streams.group(2) if streams else "1"
        number = numbers.setdefault(match.group(1), len(numbers))
        assert number < NAMES
        out += line[at : match.end()] + f"tuner_noted({number}, {int(stored or bool(streams))}, "
        assert not _ACCESS.search(line[match.end() : end]), "a subscript inside a subscript would be lost"
        out += f"{line[match.end() : end]}, {count})"
        at = end
    return out + line[at:]


def _closing(line: str, start: int) -> int:
    """Place of the bracket that closes the one before ``start``."""
    depth = 1
    for place in range(start, len(line)):
        depth += {"[": 1, "]": -1}.get(line[place], 0)
        if depth == 0:
            return place
    raise AssertionError(line)


def total(found: Iterable[Accesses]) -> tuple[int, int]:
    """Reads and writes of some tensors or tiles together."""
    one = list(found)
    return sum(int(a.reads.sum()) for a in one), sum(int(a.writes.sum()) for a in one)

"""What ptxas reports of each kernel: registers, stack, spills, shared memory, barriers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_BARRIERS = re.compile(r"used (\d+) barriers")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED_OVERFLOW = re.compile(
    r"Entry function '([^']+)' uses too much shared data \((0x[0-9a-f]+|\d+) bytes(?: \+ \S+ bytes system)?, "
    r"(0x[0-9a-f]+|\d+) max\)"
)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one kernel takes."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    """Bytes written by spill instructions, counted once each: how often they run is not known."""
    spill_load_bytes: int
    static_shared_bytes: int
    barriers: int


def read_report(report: str) -> Mapping[str, Resources]:
    """Symbol → resources, of every kernel whose report is complete."""
    out: dict[str, Resources] = {}
    entry: str | None = None
    frame = (0, 0, 0)
    about: str | None = None
    for line in report.splitlines():
        if found := _ENTRY.search(line):
            entry, frame, about = found.group(1), (0, 0, 0), None
        elif found := _PROPERTIES.search(line):
            about = found.group(1)
        elif (found := _FRAME.search(line)) and about == entry:
            frame = (int(found.group(1)), int(found.group(2)), int(found.group(3)))
        elif (found := _USED.search(line)) and entry is not None:
            out[entry] = Resources(
                registers=int(found.group(1)),
                stack_bytes=max(frame[0], _number(_STACK, line)),
                spill_store_bytes=frame[1],
                spill_load_bytes=frame[2],
                static_shared_bytes=_number(_SHARED, line),
                barriers=_number(_BARRIERS, line),
            )
            entry = None
    return out


def shared_overflow(report: str) -> tuple[int, int] | None:
    """Static shared bytes that a kernel wants and the most it may have, where ptxas refused it for that."""
    found = _SHARED_OVERFLOW.search(report)
    return None if found is None else (int(found.group(2), 0), int(found.group(3), 0))


def _number(pattern: re.Pattern[str], line: str) -> int:
    found = pattern.search(line)
    return int(found.group(1)) if found else 0

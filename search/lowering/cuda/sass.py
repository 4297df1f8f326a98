"""The instructions of a cubin's kernels, as nvdisasm prints them: how many of which kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MEMORY_INSTRUCTIONS = ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LD", "ST", "LDGSTS")
"""Loads and stores of global, shared and local memory, generic ones, and copies from global to shared memory."""
_SHUFFLES = frozenset({"SHFL"})
_WARP_REDUCTIONS = frozenset({"REDUX", "CREDUX"})
_BARRIERS = frozenset({"BAR"})
_BRANCHES = frozenset({"BRA", "BRX", "JMP", "JMX", "JMXU", "BRXU", "EXIT", "RET", "CALL"})
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+)")
_OTHER_SECTION = re.compile(r"^\s*\.section\s")
_LABEL = re.compile(r"^(\.\S+):\s*$")
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+\{?\s*"
    r"(?:@(?P<predicate>!?U?P[0-9T])\s+)?(?P<opcode>[A-Z][A-Z0-9_.]*)\s*(?P<operands>.*?)\s*;?\s*\}?\s*$"
)
_PREDICATE_OPERAND = re.compile(r"(?<![\w.])!?U?P[0-6]\b")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One machine instruction."""

    opcode: str
    """With its modifiers: ``LDG.E.128.CONSTANT``."""
    predicate: str | None
    operands: str
    labels: tuple[str, ...] = ()
    """That stand at it."""

    @property
    def name(self) -> str:
        """Opcode without modifiers."""
        return self.opcode.split(".", 1)[0]

    @property
    def never_runs(self) -> bool:
        """Whether its predicate is constantly false: the assembler leaves such instructions in as barriers."""
        return self.predicate in ("!PT", "!UPT")

    @property
    def is_conditional_branch(self) -> bool:
        """Whether control may or may not go elsewhere here: a predicated branch, call, return or exit."""
        if self.name not in _BRANCHES or self.never_runs:
            return False
        predicated = self.predicate not in (None, "PT", "UPT")
        return predicated or ".DIV" in self.opcode or bool(_PREDICATE_OPERAND.search(self.operands))

    @property
    def width_bits(self) -> int:
        """Bits that one thread moves, for a load or store."""
        return max((_WIDTHS[part] for part in self.opcode.split(".")[1:] if part in _WIDTHS), default=32)


@dataclass(frozen=True, kw_only=True)
class InstructionCounts:
    """Static counts of one kernel: sites in the code, not how often they run."""

    static_instructions: int
    """Without the padding after the last."""
    static_branches: int
    memory: Mapping[str, Mapping[str, int]]
    """Instruction → bits of one access → sites: ``{"LDG": {"128": 8}}``."""
    shuffles: int
    warp_reductions: int
    barriers: int

    @property
    def collective(self) -> Literal["none", "warp_shuffle", "shared_memory"]:
        """How threads combine values: ``shared_memory`` (with barriers), ``warp_shuffle`` or ``none``."""
        if self.barriers and "LDS" in self.memory:
            return "shared_memory"
        return "warp_shuffle" if self.shuffles or self.warp_reductions else "none"

    @property
    def widest_global_bits(self) -> int:
        """Bits of the widest load or store of global memory; 0 without any."""
        widths = [int(bits) for name in ("LDG", "STG", "LD", "ST") for bits in self.memory.get(name, {})]
        return max(widths, default=0)


def read_listing(listing: str) -> Mapping[str, tuple[Instruction, ...]]:
    """Symbol → instructions, from what ``nvdisasm --print-code`` prints of a cubin. Trailing padding is left out."""
    out: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    labels: list[str] = []
    for line in listing.splitlines():
        if found := _SECTION.match(line):
            current, labels = out.setdefault(found.group(1), []), []
        elif _OTHER_SECTION.match(line):
            current = None
        elif current is None:
            continue
        elif found := _LABEL.match(line):
            labels.append(found.group(1))
        elif found := _INSTRUCTION.match(line):
            current.append(
                Instruction(
                    opcode=found["opcode"],
                    predicate=found["predicate"],
                    operands=found["operands"],
                    labels=tuple(labels),
                )
            )
            labels = []
    return {symbol: _without_padding(instructions) for symbol, instructions in out.items()}


def count(instructions: tuple[Instruction, ...]) -> InstructionCounts:
    """The counts of one kernel. Instructions that never run count as instructions only."""
    memory: dict[str, dict[str, int]] = {}
    running = [one for one in instructions if not one.never_runs]
    for one in running:
        if one.name in MEMORY_INSTRUCTIONS:
            widths = memory.setdefault(one.name, {})
            widths[str(one.width_bits)] = widths.get(str(one.width_bits), 0) + 1
    return InstructionCounts(
        static_instructions=len(instructions),
        static_branches=sum(one.is_conditional_branch for one in running),
        memory={name: dict(sorted(widths.items())) for name, widths in sorted(memory.items())},
        shuffles=sum(one.name in _SHUFFLES for one in running),
        warp_reductions=sum(one.name in _WARP_REDUCTIONS for one in running),
        barriers=sum(one.name in _BARRIERS for one in running),
    )


def _without_padding(instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """Without the NOPs that fill the section, and the jump to itself before them."""
    end = len(instructions)
    while end and instructions[end - 1].name == "NOP":
        end -= 1
    if (
        end
        and (last := instructions[end - 1]).name == "BRA"
        and any(f"({label})" in last.operands for label in last.labels)
    ):
        end -= 1
    return tuple(instructions[:end])

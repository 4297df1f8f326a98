"""Facts about compiled kernels, read from the object file that the compiler wrote.

The artifact hash is over what the machine would execute, free of where a batch happened to put it: the function's
bytes, and for each relocation either the constant it refers to or the symbol's name. The compiler lets a small
constant lie inside a bigger one, so a constant is as many bytes as the instruction reads.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.lowering.cpu.toolchain import objdump
from search.lowering.elf import MACHINE_X86_64, ObjectFile

_DISASSEMBLY_SECONDS = 60.0
_SECTION = re.compile(r"^Disassembly of section (\S+):$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)(.*)$")
_CONDITIONAL = re.compile(r"(j(?!mp)[a-z]+|b\.[a-z]+|cbn?z|tbn?z)\Z")
_VECTOR_BITS = ((re.compile(r"\bzmm\d"), 512), (re.compile(r"\bymm\d"), 256), (re.compile(r"\bxmm\d"), 128))
_OPERAND_BYTES = {"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "XMMWORD": 16, "YMMWORD": 32, "ZMMWORD": 64}
_OPERAND = re.compile(rf"\b({'|'.join(_OPERAND_BYTES)}) (?:PTR|BCST)")
_ARM_VECTOR = re.compile(r"\b[vq]\d+\b")
_PACKED_XMM = re.compile(
    r"^v?(?:[a-z0-9]*p[sdh]|p[a-z0-9]+|mov(?:dqa|dqu|aps|ups)[0-9]*|broadcast\w*|f?n?m(?:add|sub)\w*ps)\b"
)


@dataclass(frozen=True, kw_only=True)
class FunctionFacts:
    """What one function's machine code is."""

    artifact_sha256: str
    static_instructions: int
    static_branches: int
    widest_vector_bits: int
    stack_bytes: int
    code_bytes: int


def read_facts(object_path: Path, stack_usage_path: Path, symbols: Iterable[str]) -> dict[str, FunctionFacts]:
    """Facts of each kernel of an object compiled with -ffunction-sections, -fstack-usage and -Wa,-L.

    Raises ValueError when a kernel is missing from the object.
    """
    parsed = ObjectFile.read(object_path)
    listing = _disassemble(object_path, x86=parsed.machine == MACHINE_X86_64)
    stacks = _stack_bytes(stack_usage_path.read_text())
    sections = {section.name: at for at, section in enumerate(parsed.sections)}
    out = {}
    for symbol in symbols:
        parts = [name for name in (f".text.{symbol}", f".text.unlikely.{symbol}") if name in sections]
        if not parts or symbol not in stacks:
            raise ValueError(f"the compiler's output has no function {symbol}")
        lines = [line for name in parts for line in listing.get(name, [])]
        out[symbol] = FunctionFacts(
            artifact_sha256=_artifact_sha256(parsed, sections, parts, listing, symbol),
            static_instructions=len(lines),
            static_branches=sum(1 for line in lines if _CONDITIONAL.match(line.mnemonic)),
            widest_vector_bits=max((line.vector_bits for line in lines), default=0),
            stack_bytes=stacks[symbol],
            code_bytes=sum(len(parsed.sections[sections[name]].data) for name in parts),
        )
    return out


@dataclass(frozen=True, kw_only=True)
class _Line:
    address: int
    mnemonic: str
    operands: str

    @property
    def vector_bits(self) -> int:
        """Bits of the widest vector register; an xmm register counts only where the operation is packed."""
        for register, bits in _VECTOR_BITS:
            if register.search(self.operands):
                return bits if bits > 128 or _PACKED_XMM.match(self.mnemonic) else 0
        return 128 if _ARM_VECTOR.search(self.operands) else 0

    @property
    def read_bytes(self) -> int | None:
        """Size of the memory operand; None when the instruction only takes an address."""
        operand = _OPERAND.search(self.operands)
        return None if operand is None else _OPERAND_BYTES[operand.group(1)]


def _disassemble(object_path: Path, *, x86: bool) -> dict[str, list[_Line]]:
    """Instructions by section."""
    syntax = ["-M", "intel"] if x86 else []  # it names the size of every memory operand
    command = [objdump(), "-d", "--no-show-raw-insn", "-w", *syntax, str(object_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DISASSEMBLY_SECONDS, check=True)
    out: dict[str, list[_Line]] = {}
    current: list[_Line] = []
    for text in done.stdout.splitlines():
        if line := _INSTRUCTION.match(text):
            address, mnemonic, operands = line.groups()
            current.append(_Line(address=int(address, 16), mnemonic=mnemonic, operands=operands))
        elif section := _SECTION.match(text):
            current = out.setdefault(section.group(1), [])
    return out


def _stack_bytes(usage: str) -> dict[str, int]:
    """Function → bytes, from the compiler's ``file:line:column:function<TAB>bytes<TAB>kind`` lines."""
    out = {}
    for line in usage.splitlines():
        where, count, *_ = line.split("\t")
        out[where.rsplit(":", 1)[-1]] = int(count)
    return out


def _artifact_sha256(
    parsed: ObjectFile,
    sections: Mapping[str, int],
    parts: list[str],
    listing: Mapping[str, list[_Line]],
    symbol: str,
) -> str:
    form: list[Any] = []
    for name in parts:
        at = sections[name]
        lines = listing.get(name, [])
        starts = [line.address for line in lines]
        references: list[Any] = []
        for relocation in parsed.relocations(at):
            where = [relocation.offset, relocation.kind]
            target = relocation.symbol
            if target.section is None:
                references.append([*where, "symbol", target.name, relocation.addend])
                continue
            offset, read_bytes = target.offset + relocation.addend, None
            if parsed.machine == MACHINE_X86_64:
                # Relative to the next instruction, which an immediate operand may push further away than the field.
                following = bisect_right(starts, relocation.offset)
                end = starts[following] if following < len(starts) else len(parsed.sections[at].data)
                offset += end - relocation.offset
                read_bytes = lines[following - 1].read_bytes
            section = parsed.sections[target.section]
            if section.name in parts:
                references.append([*where, "self", parts.index(section.name), offset])
            else:
                references.append([*where, "constant", parsed.datum(target.section, offset, read_bytes).hex()])
        form.append([parsed.sections[at].data.hex(), references])
    return hashlib.sha256(json.dumps([parsed.machine, form], separators=(",", ":")).encode()).hexdigest()

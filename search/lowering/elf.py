"""Just enough of ELF64 (little endian) to compare functions of one object or cubin. Standard library only."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_SHT_RELA = 4
_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_SHT_REL = 9
_STT_SECTION = 3
_SHN_LORESERVE = 0xFF00
MACHINE_X86_64 = 62


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """A symbol: where it is (None: not in this object)."""

    name: str
    section: int | None
    offset: int
    is_section: bool


@dataclass(frozen=True, kw_only=True)
class Relocation:
    """``offset`` of the field to patch, its kind, what it refers to."""

    offset: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section's name and bytes."""

    name: str
    kind: int
    link: int
    info: int
    data: bytes


class ObjectFile:
    """A relocatable object or a cubin, parsed once. ValueError when the bytes are no such thing."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian ELF64 file")
        self.machine = struct.unpack_from("<H", data, 18)[0]
        table, entry_bytes, count, names_at = (
            struct.unpack_from("<Q", data, 40)[0],
            *struct.unpack_from("<HHH", data, 58),
        )
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + at * entry_bytes) for at in range(count)]
        names = data[raw[names_at][4] :]
        self.sections = [
            Section(
                name=_text(names, row[0]),
                kind=row[1],
                link=row[6],
                info=row[7],
                data=b"" if row[1] == _SHT_NOBITS else data[row[4] : row[4] + row[5]],
            )
            for row in raw
        ]

    @classmethod
    def read(cls, path: Path) -> ObjectFile:
        """Parse a file."""
        return cls(path.read_bytes())

    @cached_property
    def symbols(self) -> list[Symbol]:
        """The symbol table."""
        out = []
        for section in self.sections:
            if section.kind != _SHT_SYMTAB:
                continue
            strings = self.sections[section.link].data
            for name, info, _, shndx, value, _ in struct.iter_unpack("<IBBHQQ", section.data):
                inside = 0 < shndx < _SHN_LORESERVE
                out.append(
                    Symbol(
                        name=_text(strings, name),
                        section=shndx if inside else None,
                        offset=value,
                        is_section=info & 0xF == _STT_SECTION,
                    )
                )
        return out

    @cached_property
    def _relocation_rows(self) -> dict[int, list[tuple[int, int, int]]]:
        """Per patched section: offset, info, addend (0 where the field itself holds it)."""
        out: dict[int, list[tuple[int, int, int]]] = {}
        for section in self.sections:
            if section.kind == _SHT_RELA:
                out.setdefault(section.info, []).extend(struct.iter_unpack("<QQq", section.data))
            elif section.kind == _SHT_REL:
                rows = struct.iter_unpack("<QQ", section.data)
                out.setdefault(section.info, []).extend((offset, info, 0) for offset, info in rows)
        return out

    def relocations(self, section: int) -> list[Relocation]:
        """What must be patched in a section, by offset."""
        out = [
            Relocation(offset=offset, kind=info & 0xFFFFFFFF, symbol=self.symbols[info >> 32], addend=addend)
            for offset, info, addend in self._relocation_rows.get(section, [])
        ]
        return sorted(out, key=lambda relocation: relocation.offset)

    @cached_property
    def _boundaries(self) -> dict[int, list[int]]:
        """Per section, where its symbols (the compiler's constant labels included) begin."""
        out: dict[int, set[int]] = {}
        for symbol in self.symbols:
            if symbol.section is not None:
                out.setdefault(symbol.section, set()).add(symbol.offset)
        return {section: sorted(offsets) for section, offsets in out.items()}

    def datum(self, section: int, offset: int, size: int | None) -> bytes:
        """``size`` bytes at an offset; None: up to the next label, alignment padding (zeros) removed."""
        data = self.sections[section].data
        if size is not None:
            return data[offset : offset + size]
        end = next((at for at in self._boundaries.get(section, []) if at > offset), len(data))
        return data[offset:end].rstrip(b"\0")


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()

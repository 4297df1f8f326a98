"""Exact lookup: a hit, or a miss that says which key fields differ. No I/O, no guessing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.format import Entry
from catalogs.key import AnyToolchain, LookupKey

NEAREST = 5
"""A miss lists at most so many entries."""

_ABSENT = None


@dataclass(frozen=True, kw_only=True)
class Hit:
    """The entry whose key equals the asked one."""

    entry: Entry


@dataclass(frozen=True, kw_only=True)
class NearMiss:
    """An entry and the fields in which it differs: name → (asked, entry's)."""

    entry: Entry
    differs: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Miss:
    """No entry has the asked key. ``nearest`` is sorted by how little differs."""

    reason: str
    nearest: tuple[NearMiss, ...]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a caller asks for: a kernel by name and params, and the key (its toolchain is ignored for ANY_TOOLCHAIN)."""

    kernel: str
    params: Mapping[str, float | int]
    key: LookupKey
    toolchain: str | AnyToolchain

    def flat(self) -> dict[str, Any]:
        """Dotted field names → asked values, without the toolchain when any will do."""
        fields = self.key.flat()
        if isinstance(self.toolchain, AnyToolchain):
            del fields["toolchain"]
        else:
            fields["toolchain"] = self.toolchain
        return fields


def lookup(entries: Iterable[Entry], query: Query) -> Hit | Miss:
    """The first entry whose every key field equals the asked one (give the entries newest first), else a Miss.

    The program digest decides; kernel name and params only explain a difference of programs.
    """
    asked = query.flat()
    near: list[tuple[tuple[int, float, int], NearMiss]] = []
    for position, entry in enumerate(entries):
        differs = _differences(asked, query, entry)
        if not differs:
            return Hit(entry=entry)
        if entry.kernel == query.kernel:
            near.append(((len(differs), _dims_distance(differs), position), NearMiss(entry=entry, differs=differs)))
    near.sort(key=lambda pair: pair[0])
    nearest = tuple(miss for _, miss in near[:NEAREST])
    if not nearest:
        return Miss(reason=f"no winner is stored for kernel {query.kernel!r}", nearest=())
    fields = ", ".join(nearest[0].differs)
    return Miss(reason=f"no winner has exactly this key; the nearest one differs in {fields}", nearest=nearest)


def _differences(asked: Mapping[str, Any], query: Query, entry: Entry) -> dict[str, tuple[Any, Any]]:
    theirs = entry.key.flat()
    if isinstance(query.toolchain, AnyToolchain):
        theirs.pop("toolchain", None)
    differs: dict[str, tuple[Any, Any]] = {}
    for name in [*asked, *(n for n in theirs if n not in asked)]:
        ours, other = asked.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if ours != other:
            differs[name] = (ours, other)
    if "program_digest" in differs:
        # Say what a person can act on where the digest differs only because a param does.
        changed = {
            f"params.{name}": (query.params.get(name), entry.params.get(name))
            for name in sorted({*query.params, *entry.params})
            if query.params.get(name) != entry.params.get(name)
        }
        if entry.kernel == query.kernel and changed:
            del differs["program_digest"]
            differs = {**changed, **differs}
    return differs


def _dims_distance(differs: Mapping[str, tuple[Any, Any]]) -> float:
    total = 0.0
    for name, (ours, other) in differs.items():
        if name.startswith("dims.") and isinstance(ours, int) and isinstance(other, int) and ours > 0 and other > 0:
            total += abs(math.log2(ours / other))
    return total

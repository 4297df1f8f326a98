"""Exact lookup: a hit, or a miss that says which key fields differ. No I/O, no guessing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.format import Entry
from catalogs.key import AnyToolchain, LookupKey

NEAREST = 5
"""A miss lists at most so many entries, no two of which differ from the query in the same way."""

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


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why there is no hit, and what comes nearest: at most five entries, sorted by how little differs."""

    reason: str
    nearest: tuple[NearMiss, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Miss:
    """No entry has the asked key. What comes near is worked out when it is first read: a hot path never pays for it."""

    query: Query
    explain: Callable[[], Explanation]

    @property
    def explanation(self) -> Explanation:
        """Reason and nearest entries."""
        known: Explanation | None = self.__dict__.get("_explanation")
        if known is None:
            # two threads may both work it out; they find the same
            known = self.__dict__["_explanation"] = self.explain()
        return known

    @property
    def reason(self) -> str:
        """One sentence that names the fields in which the nearest entry differs."""
        return self.explanation.reason

    @property
    def nearest(self) -> tuple[NearMiss, ...]:
        """At most five entries, sorted by how little differs."""
        return self.explanation.nearest

    def __reduce__(self) -> tuple[Any, ...]:
        return _explained_miss, (self.query, self.explanation)  # a worker process sends its misses to another

    def __repr__(self) -> str:
        return f"Miss({self.reason!r}, nearest={len(self.nearest)})"


def _explained_miss(query: Query, explanation: Explanation) -> Miss:
    return Miss(query=query, explain=lambda: explanation)


def lookup(entries: Iterable[Entry], query: Query) -> Hit | Miss:
    """The first entry whose every key field equals the asked one (give the entries newest first), else a Miss.

    The program digest decides; kernel name and params only explain a difference of programs.
    """
    near: list[tuple[tuple[int, float, int], NearMiss]] = []
    for position, entry in enumerate(entries):
        differs = differences(query, entry.kernel, entry.params, entry.key)
        if not differs:
            return Hit(entry=entry)
        if entry.kernel == query.kernel:
            rank = (len(differs), dims_distance(differs), position)
            near.append((rank, NearMiss(entry=entry, differs=differs)))
    near.sort(key=lambda pair: pair[0])
    explanation = explained(query, distinct(miss for _, miss in near))
    return Miss(query=query, explain=lambda: explanation)


def distinct(near: Iterable[NearMiss]) -> list[NearMiss]:
    """The first entries, at most ``NEAREST``, of which no two differ from the query in the same way.

    A key that was tuned again and again says nothing new: the first one stands for all (the newest, where the newest
    come first).
    """
    found: dict[str, NearMiss] = {}
    for miss in near:
        found.setdefault(repr(sorted(miss.differs.items())), miss)
        if len(found) == NEAREST:
            break
    return list(found.values())


def explained(query: Query, nearest: list[NearMiss]) -> Explanation:
    """The explanation of a miss, given the entries of the kernel that come nearest, the nearest first."""
    if not nearest:
        return Explanation(reason=f"no winner is stored for kernel {query.kernel!r}", nearest=())
    fields = ", ".join(nearest[0].differs)
    reason = f"no winner has exactly this key; the nearest one differs in {fields}"
    return Explanation(reason=reason, nearest=tuple(nearest))


def differences(
    query: Query, kernel: str, params: Mapping[str, float | int], key: LookupKey
) -> dict[str, tuple[Any, Any]]:
    """The fields in which a stored key differs from the asked one: name → (asked, stored)."""
    asked, theirs = query.flat(), key.flat()
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
            f"params.{name}": (query.params.get(name), params.get(name))
            for name in sorted({*query.params, *params})
            if query.params.get(name) != params.get(name)
        }
        if kernel == query.kernel and changed:
            del differs["program_digest"]
            differs = {**changed, **differs}
    return differs


def dims_distance(differs: Mapping[str, tuple[Any, Any]]) -> float:
    """How far apart two shapes are: the sum of |log2| of their dims' ratios."""
    total = 0.0
    for name, (ours, other) in differs.items():
        if name.startswith("dims.") and isinstance(ours, int) and isinstance(other, int) and ours > 0 and other > 0:
            total += abs(math.log2(ours / other))
    return total

"""A bound lookup: everything but the dims is fixed, so that a hot path pays for one dictionary."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from catalogs.errors import QueryError
from catalogs.fields import shown
from catalogs.index import Group
from catalogs.lookup import Explanation, Hit, Miss, Query
from catalogs.snapshot import Snapshot

_MISSES_KEPT = 1024


@dataclass(frozen=True, kw_only=True)
class Binding:
    """What a bound lookup asks of: a snapshot (None: lookups are switched off), the query without dims, the entries."""

    snapshot: Snapshot | None
    query: Query
    group: Group | None
    """None: no entry has such a key, whatever the dims."""
    dims: tuple[str, ...] | None
    """The kernel's dims in declared order; None when the catalog does not have the kernel."""
    on_miss: Callable[[Miss], None] | None
    switched_off: str | None = None
    """The reason why every lookup misses."""


class BoundLookup:
    """Call it with the dims, positionally in declared order: a Hit, or a Miss. Thread-safe, fork-safe, no I/O.

    It stays with the catalog that it was bound in, whatever is refreshed later.
    """

    __slots__ = ("_binding", "_get", "_misses")

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._get = (binding.group.hits if binding.group else {}).get
        self._misses: dict[tuple[int, ...], Miss] = {}

    @property
    def dims(self) -> tuple[str, ...] | None:
        """The names of the arguments; None when the catalog does not have the kernel."""
        return self._binding.dims

    @property
    def digest(self) -> str | None:
        """The digest of the catalog that it was bound in; None when lookups are switched off."""
        return self._binding.snapshot.digest if self._binding.snapshot else None

    def __call__(self, *dims: int) -> Hit | Miss:
        # True and 8.0 equal integers, so the dictionary would take them: types are looked at before it
        if len(dims) == 2:  # most kernels; a loop would take a third longer
            first, second = dims
            if type(first) is int is type(second):
                return self._get(dims) or self.find(dims)
        for value in dims:
            if type(value) is not int:
                return self.find(dims)
        return self._get(dims) or self.find(dims)

    def find(self, dims: tuple[Any, ...]) -> Hit | Miss:
        """The answer for dims that were not hit before. Raises QueryError for what cannot be dims."""
        binding = self._binding
        extents = self._extents(dims)
        if binding.group is not None and binding.snapshot is not None:
            hit = binding.snapshot.hit(binding.group, extents)
            if hit is not None:
                return hit
        names = binding.dims or tuple(f"dim{position}" for position in range(len(extents)))
        miss = self._misses.get(extents) or self.miss(dict(zip(names, extents, strict=True)), extents)
        if binding.on_miss is not None:
            binding.on_miss(miss)
        return miss

    def miss(self, dims: Mapping[str, int], kept_as: tuple[int, ...] | None = None) -> Miss:
        """The miss of named dims."""
        binding = self._binding
        query = replace(binding.query, key=replace(binding.query.key, dims=dims))
        snapshot, off = binding.snapshot, binding.switched_off
        if snapshot is None:
            made = Miss(query=query, explain=lambda: Explanation(reason=off or "switched off", nearest=()))
        else:
            made = Miss(query=query, explain=lambda: snapshot.explain(query))
        if kept_as is not None:
            if len(self._misses) >= _MISSES_KEPT:
                self._misses.clear()
            self._misses[kept_as] = made
        return made

    def _extents(self, dims: tuple[Any, ...]) -> tuple[int, ...]:
        names = self._binding.dims
        if names is not None and len(dims) != len(names):
            raise QueryError(f"dims: {self._binding.query.kernel} takes {', '.join(names)}, got {len(dims)} of them")
        return tuple(extent(value, names[n] if names else f"dim{n}") for n, value in enumerate(dims))


def extent(value: Any, name: str) -> int:
    """The integer that a dim is (any integer type will do). Raises QueryError for anything else."""
    if isinstance(value, bool):
        raise QueryError(f"dims.{name}: expected an integer, got {shown(value)}")
    try:
        return operator.index(value)
    except TypeError:
        raise QueryError(f"dims.{name}: expected an integer, got {shown(value)}") from None

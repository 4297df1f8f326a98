"""A catalog as a process holds it: its bytes in memory, found by key, each entry parsed when it is first asked for.

Nothing is read from disk afterwards, so the file may be replaced, damaged or removed; nothing is locked, so any number
of threads may look up and a fork is safe. The only things that change are caches whose every writer writes the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

from catalogs import fields as check
from catalogs.canonical import parse_json
from catalogs.catalog import Catalog
from catalogs.errors import FormatError
from catalogs.format import SCHEMA_VERSION, Entry
from catalogs.index import Group, build_index, group_key, read_index
from catalogs.kernels import KernelRow, params_text
from catalogs.key import LookupKey
from catalogs.lines import digest_of, write_lines
from catalogs.lookup import Explanation, Hit, NearMiss, Query, differences, dims_distance, distinct, explained


class Snapshot:
    """A verified catalog, ready to be looked up. Make one with :meth:`of` or :meth:`from_files`."""

    def __init__(self, *, digest: str, data: bytes, header: Mapping[str, Any], groups: Mapping[Any, Group]) -> None:
        self.digest = digest
        self.role: str = header["role"]
        self.device: str = header["device"]
        self.toolchain: str = header["toolchain"]
        self.kernels = tuple(KernelRow.from_document(row) for row in header["kernels"])
        self._data = data
        self._groups = groups
        self._rows = {row.order: row for row in self.kernels}

    @classmethod
    def of(cls, catalog: Catalog) -> Snapshot:
        """The snapshot of a catalog in memory."""
        lines = write_lines(catalog)
        groups = read_index(
            build_index(catalog, lines),
            digest=catalog.digest,
            data=lines.data,
            device=catalog.device,
            toolchain=catalog.toolchain,
            kernels=catalog.kernels,
        )
        return cls(digest=catalog.digest, data=lines.data, header=catalog.header(), groups=groups)

    @classmethod
    def from_files(cls, *, digest: str, data: bytes, index: bytes | None) -> Snapshot:
        """The snapshot of a catalog's file, verified by its digest; ``index`` saves parsing every entry.

        Any spelling of the catalog will do, though only a store's own is quick to open. Raises FormatError when the
        file is not that catalog. A missing, damaged or wrong index is made again.
        """
        if digest_of(data) != digest:
            try:
                return cls.of(Catalog.from_bytes(data, digest=digest, name="file"))
            except FormatError as error:
                raise FormatError(f"catalog {digest}: the file was damaged, cut off or edited ({error})") from None
        if index is not None:
            try:
                header = parse_json(data[: data.index(b"\n")] + data[data.rindex(b"\n") + 1 :], name="header")
                check.a_known_version(header["schema_version"], "schema_version", SCHEMA_VERSION)
                groups = read_index(
                    index,
                    digest=digest,
                    data=data,
                    device=header["device"],
                    toolchain=header["toolchain"],
                    kernels=tuple(KernelRow.from_document(row) for row in header["kernels"]),
                )
                return cls(digest=digest, data=data, header=header, groups=groups)
            except (FormatError, AttributeError, LookupError, TypeError, ValueError):
                pass  # the entries are whole: the index can be made again
        return cls.of(Catalog.from_bytes(data, digest=digest, name=f"catalog {digest}"))

    def __len__(self) -> int:
        return sum(len(group.spans) for group in self._groups.values())

    def row(self, kernel: str, params: Mapping[str, float | int]) -> KernelRow | None:
        """The kernels row of a name with every param's value; None if the catalog has no such program."""
        return self._rows.get((kernel, params_text(params)))

    def model(self, kernel: str) -> KernelRow | None:
        """Some row of a name, whatever its params: it has the kernel's dims, default dtypes and default params."""
        return next((row for row in self.kernels if row.name == kernel), None)

    def group(self, key: LookupKey) -> Group | None:
        """The entries with this key but for the dims."""
        return self._groups.get(group_key(key))

    def hit(self, group: Group, dims: tuple[int, ...]) -> Hit | None:
        """The entry of a group with these dims, in declared order; None if there is none."""
        found = group.hits.get(dims)
        if found is not None:
            return found
        span = group.spans.get(dims)
        if span is None:
            return None
        entry = self._entry(span)
        wanted = {**group.key.document(), "dims": dict(zip(group.kernel.dims, dims, strict=True))}
        if entry.key.document() != wanted or entry.kernel != group.kernel.name:
            raise FormatError(f"catalog {self.digest}: its index gives another key's entry (trial {entry.trial_id})")
        return group.hits.setdefault(dims, Hit(entry=entry))

    def explain(self, query: Query) -> Explanation:
        """What comes nearest to a query that missed. Only the nearest entries are parsed."""
        return explained(query, distinct(self._nearest(query)))

    def _nearest(self, query: Query) -> Iterator[NearMiss]:
        """Entries of the kernel, the nearest first; each is parsed when it is asked for."""
        ranked = self._ranked(query)
        heapq.heapify(ranked)
        while ranked:
            _, _, offset, length = heapq.heappop(ranked)
            entry = self._entry((offset, length))
            yield NearMiss(entry=entry, differs=differences(query, entry.kernel, entry.params, entry.key))

    def _ranked(self, query: Query) -> list[tuple[int, float, int, int]]:
        """(fields that differ, distance of the dims, offset, length) of each entry of the kernel."""
        ranked = []
        asked = query.key.dims
        without_dims = Query(
            kernel=query.kernel,
            params=query.params,
            key=LookupKey(**{**vars(query.key), "dims": {}}),
            toolchain=query.toolchain,
        )
        for group in self._groups.values():
            row = group.kernel
            if row.name != query.kernel:
                continue
            base = len(differences(without_dims, row.name, row.params, group.key))
            base += sum(1 for name in asked if name not in row.dims)
            ours = [asked.get(name) for name in row.dims]
            for dims, (offset, length) in group.spans.items():
                differs = {
                    f"dims.{name}": (mine, other)
                    for name, mine, other in zip(row.dims, ours, dims, strict=True)
                    if mine != other
                }
                ranked.append((base + len(differs), dims_distance(differs), offset, length))
        return ranked

    def _entry(self, span: tuple[int, int]) -> Entry:
        offset, length = span
        return Entry.from_document(parse_json(self._data[offset : offset + length], name="entry"))

"""Private storage of an outline, and the snapshots of cached inputs: where they are kept and when they are taken."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from search.planning.lift import FreshNames
from search.planning.schedule import DistributedLoop, GlobalLoad, PrivateStore
from search.program.case import Case
from search.program.ir import DType, Load, Name, Program, Store
from search.space.uses import Use, column_axes


@dataclass(frozen=True, kw_only=True)
class Storage:
    """One private tile, not yet divided over lanes."""

    name: str
    kind: Literal["tile", "snapshot"]
    dtype: DType
    axes: tuple[str, ...]
    extent: int


class Snapshots:
    """Snapshots made so far; their storage joins ``storage``, under names of ours."""

    def __init__(self, case: Case, program: Program, names: FreshNames, storage: dict[str, Storage]) -> None:
        self._case, self._program, self._names, self._storage = case, program, names, storage
        self.taken: dict[str, str] = {}
        """Cached input to the name of its private tile, once its snapshot exists."""

    def storage(self, tensor: str, reader: Use) -> Storage:
        """Room for the snapshot of a tensor, in its readers' order of axes: each lane keeps what it will read."""
        name = self._names.unique(f"{tensor}_snapshot")
        columns = column_axes(self._program, self._program.tensor(tensor))
        axes = tuple(axis for axis in reader.over if axis in columns)
        self.taken[tensor] = name
        self._storage[name] = Storage(
            name=name,
            kind="snapshot",
            dtype=self._case.dtypes[tensor],
            axes=axes,
            extent=self._case.domain_extent(axes),
        )
        return self._storage[name]

    def loop(self, load: Load, reader: Use) -> DistributedLoop:
        """The traversal that takes the snapshot."""
        storage = self.storage(load.tensor, reader)
        into = self._names.fresh(load.tensor)
        return DistributedLoop(
            axes=storage.axes,
            extent=storage.extent,
            stripe_scalars=storage.extent,
            ops=(
                GlobalLoad(into=into, tensor=load.tensor, index=load.index, dtype=storage.dtype),
                PrivateStore(tile=storage.name, value=Name(name=into)),
            ),
            purpose="snapshot",
        )

    def before_write(self, use: Use, uses: Sequence[Use], cached: Collection[str]) -> list[DistributedLoop]:
        """The snapshot that a store's traversal must wait for: of a cached input first read after it is overwritten."""
        shared = self._program.tensor(use.statement.tensor).aliases if isinstance(use.statement, Store) else None
        if shared is None or shared not in cached or shared in self.taken:
            return []
        reader = next((other for other in uses if other.reads(shared)), None)
        if reader is None or reader.index <= use.index:
            return []
        return [self.loop(next(load for load in reader.loads if load.tensor == shared), reader)]

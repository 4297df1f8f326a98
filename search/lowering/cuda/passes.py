"""How the passes of one distributed loop are laid out in the text, and how many places that read global memory it has.

Registers have no run-time index, so what keeps elements in them is unrolled; what reads memory again is so in part, and
evenly: the compiler merges the reads of passes outside a loop with those of another loop's, be it all passes or the
remainder that an unroll factor leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from search.lowering.cuda.geometry import Geometry, geometry_of
from search.lowering.cuda.reducers import deferred_reducers
from search.planning.schedule import (
    Accumulate,
    DistributedLoop,
    GlobalLoad,
    PrivateLoad,
    PrivateStore,
    ReducerState,
    Schedule,
    flat_steps,
)
from search.program.ir import DTYPE_BYTES

_WIDEST_ACCESS_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Passes:
    """``rounds`` of ``partials`` passes each, in a loop if there are several; ``rest`` passes; a tail of ``left``
    elements, 0 for none."""

    rounds: int
    partials: int
    rest: int
    left: int
    unrolled: bool
    """The loop is unrolled in full."""
    factor: int
    """Else so many rounds of it at once."""

    @property
    def full(self) -> int:
        """Passes without the tail."""
        return self.rounds * self.partials + self.rest

    @property
    def sites(self) -> int:
        """How often what a pass does stands in the code."""
        rounds = self.rounds if self.unrolled else self.factor
        return rounds * self.partials + self.rest + (self.left > 0)


def passes_of(
    loop: DistributedLoop,
    geometry: Geometry,
    *,
    reducers: Mapping[str, ReducerState],
    deferred: Collection[str],
) -> Passes:
    """The passes of a loop; ``deferred``: reducers that TileLang's own serve, with one accumulator."""
    own = [op for op in loop.ops if isinstance(op, Accumulate) and op.reducer not in deferred]
    partials = geometry.partials if any(not reducers[op.reducer].strict for op in own) else 1
    full, left = divmod(loop.extent, geometry.chunk)
    rounds, rest = divmod(full, partials)
    return Passes(
        rounds=rounds,
        partials=partials,
        rest=rest,
        left=left,
        unrolled=rounds <= 1 or any(isinstance(op, PrivateLoad | PrivateStore) for op in loop.ops),
        factor=max((f for f in range(1, rounds) if f <= geometry.unroll and rounds % f == 0), default=1),
    )


def planned_load_sites(schedule: Schedule) -> int:
    """Places in the text that read elements of inputs, loops unrolled as it says, in accesses as wide as they get.

    Machine code with fewer of them reads some element once where the text reads it again.
    """
    geometry = geometry_of(schedule, "rows")
    reducers = {state.name: state for state in schedule.reducers}
    deferred = deferred_reducers(schedule, geometry)
    sites = 0
    for step, times in flat_steps(schedule.steps):
        if not isinstance(step, DistributedLoop) or times == 0:
            continue
        passes = passes_of(step, geometry, reducers=reducers, deferred=deferred)
        loads = {(op.tensor, op.index): op.dtype for op in step.ops if isinstance(op, GlobalLoad) and not op.staged}
        for dtype in loads.values():
            sites += passes.sites * -(-geometry.vector * DTYPE_BYTES[dtype] // _WIDEST_ACCESS_BYTES)
    return sites

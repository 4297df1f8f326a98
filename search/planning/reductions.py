"""The reducers of an outline: what was opened, where an update lands in an array, what a finalize makes."""

from __future__ import annotations

from collections.abc import Iterable

from search.planning.lift import Names, lifted
from search.planning.schedule import (
    Accumulate,
    ArrayIndex,
    Collective,
    ElementOp,
    OpenReducer,
    ReducerState,
    RowArray,
)
from search.program.arrays import array_axes
from search.program.case import Case
from search.program.ir import DType, Finalize, Loop, Program, Reducer, Update
from search.program.monoids import result_dtypes
from search.program.ranges import Ranges


class Reductions:
    """Reducers opened so far and the row arrays that came of them."""

    def __init__(self, case: Case, program: Program) -> None:
        self._case, self._program = case, program
        self._statements: dict[str, Reducer] = {}
        self.states: dict[str, ReducerState] = {}
        self.arrays: dict[str, RowArray] = {}

    def open(self, reducer: Reducer, names: Names) -> OpenReducer:
        """Start the epoch."""
        self._statements[reducer.name] = reducer
        self.states[reducer.name] = ReducerState(
            name=reducer.name,
            op=reducer.op,
            dtype=reducer.dtype,
            seed=None if reducer.seed is None else lifted(reducer.seed, names),
            strict=reducer.order == "strict",
            elements=self._case.domain_extent(array_axes(self._program, reducer)),
        )
        return OpenReducer(reducer=reducer.name)

    def index(self, update: Update, names: Names, loops: Iterable[Loop]) -> tuple[ArrayIndex, ...]:
        """The element that an update contributes to; () for a scalar reducer. ``loops`` are those around it."""
        reducer = self._statements[update.reducer]
        counters = {loop.index: (0, max(trips(self._case, loop), 1) - 1) for loop in loops if loop.index is not None}
        ranges = Ranges(case=self._case, counters=counters)
        found = []
        for position, entry in enumerate(reducer.shape):
            extent = ranges.extent(entry)
            low, high = ranges.index(update, position, guarded=False)
            value = lifted(update.index[position], names)
            found.append(ArrayIndex(value=value, extent=extent, clamped=low < 0 or high >= extent))
        return tuple(found)

    def strict(self, ops: Iterable[ElementOp]) -> bool:
        """True when a strict fold is among the operations."""
        return any(isinstance(op, Accumulate) and self.states[op.reducer].strict for op in ops)

    def finalize(self, finalize: Finalize, scalars: dict[str, DType]) -> Collective:
        """The collective; its result joins the row scalars or the row arrays."""
        state = self.states[finalize.reducer]
        axes = array_axes(self._program, self._statements[state.name])
        if axes:
            extents = tuple(self._case.extent(axis) for axis in axes)
            self.arrays[finalize.into] = RowArray(name=finalize.into, dtype=state.dtype, axes=axes, extents=extents)
        else:
            scalars |= zip(finalize.results, result_dtypes(state.op, state.dtype), strict=True)
        return Collective(
            reducer=state.name,
            into=finalize.into,
            op=state.op,
            dtype=state.dtype,
            seed=state.seed,
            rounds=0,
            strict=state.strict,
            elements=state.elements,
            rest=finalize.rest,
        )


def trips(case: Case, loop: Loop) -> int:
    """How often a serial loop of the case runs its body."""
    return int(case.dims[loop.count] if loop.count in case.dims else case.params[loop.count])

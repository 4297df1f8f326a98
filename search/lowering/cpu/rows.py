"""The steps of a schedule that belong to a row, not to its elements: epochs, collectives, row scalars, row stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from search.lowering import names
from search.lowering.cpu.geometry import Geometry
from search.lowering.cpu.traversal import accumulate
from search.lowering.expressions import Scope, Value
from search.lowering.indexing import halves, join
from search.lowering.row_steps import RowWriter
from search.lowering.states import merge, partial_arrays
from search.lowering.tensors import Layout
from search.lowering.text import Text
from search.planning.schedule import Collective, ReducerState, RowUpdate


class RowSteps(RowWriter):
    """Writes row steps into a text."""

    def __init__(
        self,
        *,
        text: Text,
        geometry: Geometry,
        scope: Scope,
        layouts: Mapping[str, Layout],
        reducers: Mapping[str, ReducerState],
        arrays: Collection[str],
        rows: str,
    ) -> None:
        self.arrays = arrays
        self.text, self.geometry, self.scope = text, geometry, scope
        self.layouts, self.reducers, self.rows = layouts, reducers, rows

    @property
    def _row(self) -> str:
        return self.geometry.row

    @property
    def _slot(self) -> str:
        return self.geometry.slot

    @contextmanager
    def _each_row(self) -> Iterator[None]:
        with self.text.block(self.geometry.block_loop):
            self._mark(self.geometry.across_loop)
            with self.text.block(self.geometry.across_loop):
                yield

    @contextmanager
    def _each_live_row(self) -> Iterator[None]:
        with self._each_row(), self.text.block(self.geometry.live(self.rows, self.scope.used)):
            yield

    def _mark(self, loop: str | None) -> None:
        if loop is not None and self.geometry.simd_rest:
            self.scope.used.add("simd")
            self.text.line("simd()")

    def _open(self, state: ReducerState) -> None:
        """Every partial := identity, rows of ``width`` at a time."""
        arrays = partial_arrays(state)
        if any(array.identity.startswith("f32") for array in arrays):
            self.scope.used.add("f32")
        blocks, width = self.geometry.row_block * self.geometry.partials, self.geometry.width
        if state.strict:
            blocks, width = self.geometry.row_block, self.geometry.rows_across
        blocks *= state.elements
        head = f"T.unroll({blocks}, explicit=True)" if state.elements == 1 else f"T.serial({blocks})"
        with self.text.block(f"for b in {head}:" if blocks > 1 else None):
            self._mark("lanes")
            with self.text.block(f"for w in T.serial({width}):"):
                for array in arrays:
                    self.text.line(f"{array.text}[{'b' if blocks > 1 else '0'}, w] = {array.identity}")

    def _update(self, step: RowUpdate) -> None:
        """The row contributes once, through lane 0's first partial."""
        with self._each_row():
            accumulate(self.text, self.geometry, self.scope, self.reducers[step.reducer], step, "0", "0")

    def _collective(self, step: Collective) -> None:
        """A tree over the partials, a tree over the lanes, then the seed once; of an array, element by element."""
        element = "m" if step.elements > 1 else "0"
        with self.text.block(f"for m in T.serial({step.elements}):" if step.elements > 1 else None):
            self._combine(step, element)

    def _combine(self, step: Collective, element: str) -> None:
        geometry, text, state = self.geometry, self.text, self.reducers[step.reducer]
        if step.strict:
            with self._each_row():
                self._deliver(step, geometry.chain(element), element)
            return
        with text.block(geometry.block_loop):
            for half in halves(geometry.partials):
                for partial in range(half):
                    self._mark("lanes")
                    with text.block(f"for w in T.serial({geometry.width}):"):
                        first, second = self._block(partial, element), self._block(partial + half, element)
                        merge(text, self.scope, state, f"{first}, w", f"{second}, w")
            if geometry.lanes == 1:
                self._mark(geometry.across_loop)
            with text.block(geometry.across_loop):
                self._lane_tree(state, element)
                self._deliver(step, geometry.accumulator("0", "0", element), element)

    def _deliver(self, step: Collective, index: str, element: str) -> None:
        """What the partial at ``index`` holds becomes row scalars or an element of an array; the seed joins once."""
        for into, array in zip(step.results, partial_arrays(self.reducers[step.reducer]), strict=True):
            total = Value(text=f"{array.text}[{index}]", dtype=array.dtype)
            if step.seed is not None:
                total = self.scope.combine(step.op, self.scope.render_as(step.seed, step.dtype), total)
            if into in self.arrays:
                self.text.line(f"{names.array(into)}[{self.geometry.slot}, {element}] = {total.text}")
            else:
                self._assign(into, total.text)

    def _lane_tree(self, state: ReducerState, element: str) -> None:
        """Lanes in halves: L/2 pairs, then L/4, … down to lane 0."""
        levels = len(halves(self.geometry.lanes))
        if levels == 0:
            return
        half = str(self.geometry.lanes // 2) if levels == 1 else f"({self.geometry.lanes // 2} >> h)"
        with self.text.block(f"for h in T.unroll({levels}, explicit=True):" if levels > 1 else None):
            self._mark("lanes")
            with self.text.block(f"for l in T.serial({half.strip('()')}):"):
                first = self.geometry.accumulator("0", "l", element)
                second = self.geometry.accumulator("0", join("l", half), element)
                merge(self.text, self.scope, state, first, second)

    def _block(self, partial: int, element: str) -> str:
        return self.geometry.accumulator(str(partial), "0", element).split(", ")[0]

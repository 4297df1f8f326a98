"""The steps of a schedule that belong to a row, not to its elements: epochs, collectives, row scalars, row stores.

Every thread of a row does them all, with the same values; only stores and contributions are one lane's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from search.lowering import names
from search.lowering.cuda.expressions import STORED, CudaScope
from search.lowering.cuda.geometry import Geometry
from search.lowering.cuda.reducers import operation, reduce_name, slot, slots, structured
from search.lowering.expressions import Value
from search.lowering.indexing import halves, join, product
from search.lowering.row_steps import RowWriter
from search.lowering.states import absorb, array_element, merge, partial_arrays
from search.lowering.tensors import Layout
from search.lowering.text import Text
from search.planning.schedule import Collective, ReducerState, RowUpdate

LONGEST_UNROLL = 64
"""Partials whose loop is unrolled, so that registers can hold them."""


class RowSteps(RowWriter):
    """Writes row steps into a text."""

    def __init__(
        self,
        *,
        text: Text,
        geometry: Geometry,
        scope: CudaScope,
        layouts: Mapping[str, Layout],
        reducers: Mapping[str, ReducerState],
        deferred: frozenset[str],
        arrays: Mapping[str, Layout],
        row_axis: str,
    ) -> None:
        self.arrays, self.deferred = arrays, deferred
        self.scope = replace(scope, coordinates={**scope.coordinates, row_axis: geometry.row})
        self.text, self.geometry = text, geometry
        self.layouts, self.reducers = layouts, reducers

    @property
    def _row(self) -> str:
        return self.geometry.row

    @property
    def _slot(self) -> str:
        return "0"

    def _each_row(self) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def _each_live_row(self) -> Iterator[None]:
        live = self.geometry.live(self.geometry.slot, self.scope.used)
        with self._one_lane(), self.text.block(live):
            yield

    @contextmanager
    def _one_lane(self) -> Iterator[None]:
        with self.text.block(f"if {self.geometry.lane} == 0:" if self.geometry.width > 1 else None):
            yield

    def _open(self, state: ReducerState) -> None:
        """Every partial := identity."""
        if state.name in self.deferred:
            self.text.line(f"T.reducer_init({names.partials(state.name)})")
            return
        count = slots(state, self.geometry)
        with self._over("b", count):
            for array in partial_arrays(state):
                if array.identity.startswith("f32"):
                    self.scope.used.add("f32")
                self.text.line(f"{array.text}[{'b' if count > 1 else '0'}] = {array.identity}")

    @contextmanager
    def _over(self, variable: str, count: int) -> Iterator[None]:
        kind = "unroll" if count <= LONGEST_UNROLL else "serial"
        with self.text.block(f"for {variable} in T.{kind}({count}):" if count > 1 else None):
            yield

    def _update(self, step: RowUpdate) -> None:
        """The row contributes once: through its first lane's first partial, or to the chain that every lane follows."""
        state = self.reducers[step.reducer]
        if state.strict:
            self._absorb(step, state)
            return
        with self._one_lane():
            self._absorb(step, state)

    def _absorb(self, step: RowUpdate, state: ReducerState) -> None:
        element = "0"
        if step.index:
            element = array_element(self.scope, step)
            if not element.isdigit():
                self.text.line(f"{names.element(step.reducer)} = {element}")
                element = names.element(step.reducer)
        absorb(self.text, self.scope, state, step, slot(state, self.geometry, "0", element), "0")

    def _collective(self, step: Collective) -> None:
        """Partials, then lanes, then the seed once; of an array, element by element."""
        state = self.reducers[step.reducer]
        if step.reducer in self.deferred:
            self._finalize(step)
            return
        with self._over("m", step.elements):
            element = "m" if step.elements > 1 else "0"
            if not step.strict:
                self._combine(state, element)
            index = slot(state, self.geometry, "0", element)
            for into, array in zip(step.results, partial_arrays(state), strict=True):
                self._deliver(step, into, Value(text=f"{array.text}[{index}]", dtype=array.dtype), element)

    def _combine(self, state: ReducerState, element: str) -> None:
        """A tree over the lane's partials, then the collective over the row's lanes."""
        geometry = self.geometry
        for half in halves(geometry.partials):
            for partial in range(half):
                first = slot(state, geometry, str(partial), element)
                second = join(product(element, geometry.partials), str(partial + half))
                merge(self.text, self.scope, state, first, second)
        if geometry.width == 1:
            return
        index = slot(state, geometry, "0", element)
        arrays = partial_arrays(state)
        if structured(state):
            self.scope.used.add("across_parts")
            pointers = ", ".join(f"T.address_of({array.text}[{index}])" for array in arrays)
            self.text.line(f'across_parts("{reduce_name(state)}", {pointers})')
            return
        (array,) = arrays
        self.scope.used.add("across")
        held = f"{array.text}[{index}]"
        self.text.line(f'{held} = across("{operation(state)}", {STORED[state.dtype]}, {held})')

    def _finalize(self, step: Collective) -> None:
        """The end of a deferred reducer's epoch: TileLang's collective, delivered to every lane of the row."""
        name = names.delivered(step.reducer)
        self.text.line(f"T.finalize_reducer({names.partials(step.reducer)}, {name})")
        with self.text.block(f"for r in T.Parallel({self.geometry.rows_per_block}):"):
            self._deliver(step, step.into, Value(text=f"{name}[r]", dtype=step.dtype), "0")

    def _deliver(self, step: Collective, into: str, total: Value, element: str) -> None:
        """A result becomes a row scalar or an element of an array; the seed joins once."""
        if step.seed is not None:
            total = self.scope.combine(step.op, self.scope.render_as(step.seed, step.dtype), total)
        if into in self.arrays:
            self.text.line(f"{names.array(into)}[{element}] = {total.text}")
        else:
            self._assign(into, total.text)

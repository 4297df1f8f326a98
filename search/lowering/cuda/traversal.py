"""One DistributedLoop as text: a loop over passes, and in each pass one nest over the rows and elements of a block.

What a pass reads from global memory is staged in fragments first (a nest each, guarded in the tail), what it writes in
lane accesses of several scalars goes through one too: TileLang widens plain copies, and only those. The fragments'
layout says which thread owns which element, and every nest follows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from search.lowering import names
from search.lowering.cuda.expressions import STORED, CudaScope
from search.lowering.cuda.fragments import Fragments
from search.lowering.cuda.geometry import Geometry
from search.lowering.cuda.passes import passes_of
from search.lowering.cuda.reducers import neutral, slot
from search.lowering.expressions import NARROW, Value
from search.lowering.indexing import coordinates, join, product
from search.lowering.states import absorb, array_element, partial_arrays
from search.lowering.tensors import Layout
from search.lowering.text import Text
from search.planning.schedule import (
    Accumulate,
    Compute,
    DistributedLoop,
    ElementOp,
    GlobalLoad,
    GlobalStore,
    PrivateLoad,
    PrivateStore,
    ReducerState,
)
from search.program.ir import Name
from search.program.walk import walk

ANCHOR = "anchor"
"""A fragment that only says which thread does what, for nests that touch no other."""
_ELEMENT = re.compile(r"\be\b")


class Traversal:
    """Writes one loop. ``scope`` knows params, dims and row scalars; ``extents`` the extent of each axis."""

    def __init__(
        self,
        *,
        text: Text,
        geometry: Geometry,
        loop: DistributedLoop,
        scope: CudaScope,
        layouts: Mapping[str, Layout],
        extents: Mapping[str, int],
        reducers: Mapping[str, ReducerState],
        deferred: frozenset[str],
        arrays: Mapping[str, Layout],
        row_axis: str,
        fragments: Fragments,
    ) -> None:
        self.arrays = {name: layout for name, layout in arrays.items() if set(layout.axes) <= set(loop.axes)}
        self.text, self.geometry, self.loop, self.fragments = text, geometry, loop, fragments
        self.layouts, self.extents, self.reducers, self.deferred = layouts, extents, reducers, deferred
        self.scope = replace(scope, coordinates={**scope.coordinates, row_axis: geometry.row})
        own = [op for op in loop.ops if isinstance(op, Accumulate) and op.reducer not in deferred]
        self.passes = passes_of(loop, geometry, reducers=reducers, deferred=deferred)
        self.folds = [op for op in own if reducers[op.reducer].strict]
        self.kept = self._kept()

    def _kept(self) -> dict[str, str]:
        """Loads that go straight to the private tile that keeps them."""
        loads = {op.into: op for op in self.loop.ops if isinstance(op, GlobalLoad)}
        out: dict[str, str] = {}
        for op in self.loop.ops:
            if isinstance(op, PrivateStore) and isinstance(op.value, Name):
                load = loads.get(op.value.name)
                if load is not None and load.dtype == self.fragments.dtype_of(op.tile):
                    out.setdefault(load.into, op.tile)
        return out

    def write(self) -> None:
        """The whole traversal."""
        passes = self.passes
        if passes.rounds:
            with self.text.block(self._pass_loop()):
                self._round("p" if passes.rounds > 1 else "0", passes.partials)
        if passes.rest:
            self._round(str(passes.rounds), passes.rest)
        if passes.left:
            self._pass(str(passes.full), str(passes.full % passes.partials), passes.left)

    def _pass_loop(self) -> str | None:
        """Head of the loop over rounds."""
        if self.passes.rounds == 1:
            return None
        if self.passes.unrolled:
            return f"for p in T.unroll({self.passes.rounds}):"
        return f"for p in T.unroll({self.passes.rounds}, unroll_factor={self.passes.factor}):"

    def _round(self, round_: str, count: int) -> None:
        """``count`` passes, each into its own partial."""
        with self.text.block(f"for j in T.unroll({count}):" if count > 1 else None):
            partial = "j" if count > 1 else "0"
            self._pass(join(product(round_, self.passes.partials), partial), partial, None)

    def _pass(self, chunk: str, partial: str, left: int | None) -> None:
        """One pass; ``left`` elements of it if it is the tail."""
        element = join(product(chunk, self.geometry.chunk), "k")
        inside = None if left is None else f"{element} < {self.loop.extent}"
        for op in self.loop.ops:
            if isinstance(op, GlobalLoad):
                self._load(op, chunk, element, inside)
        self._compute(chunk, element, partial, inside)
        for op in self.loop.ops:
            if isinstance(op, GlobalStore) and self._stages():
                self._store(op, element, inside)
        for op in self.folds:
            self._fold(op, self.geometry.chunk if left is None else left)

    # --- copies between global memory and fragments ---

    def _load(self, op: GlobalLoad, chunk: str, element: str, inside: str | None) -> None:
        """A nest that reads one tensor; past the end nothing is read, and what stands there is never used."""
        layout = self.layouts[op.tensor]
        index = layout.index(op.index, self._at(element), self.geometry.row, self.loop.axes, element)
        value = f"{names.tensor(op.tensor)}[{index}]"
        if inside is not None:
            nothing = "T.int32(0)" if op.dtype == "int32" else "T.float32(0)"
            if op.dtype in NARROW:
                nothing = f"T.cast({nothing}, {STORED[op.dtype]})"
            value = f"T.if_then_else({inside}, {value}, {nothing})"
        with self.text.block(self.geometry.nest):
            self.text.line(f"{self._place(op, chunk)} = {value}")

    def _place(self, op: GlobalLoad, chunk: str) -> str:
        """Where a load's element is kept."""
        tile = self.kept.get(op.into)
        if tile is not None:
            return f"{names.tile(tile)}[r, k, {chunk}]"
        name = names.staged(op.into)
        self.fragments.stage(name, op.dtype)
        return f"{name}[r, k]"

    def _stages(self) -> bool:
        """Whether stores wait in a fragment, to be written as packets."""
        return self.geometry.vector > 1

    def _store(self, op: GlobalStore, element: str, inside: str | None) -> None:
        """A nest that writes one tensor from its fragment."""
        layout = self.layouts[op.tensor]
        index = layout.index(layout.natural, self._at(element), self.geometry.row, self.loop.axes, element)
        with (
            self.text.block(self.geometry.nest),
            self.text.block(None if inside is None else f"if {inside}:"),
            self.text.block(self._if_live()),
        ):
            self.text.line(f"{names.tensor(op.tensor)}[{index}] = {names.staged(op.tensor)}[r, k]")

    def _if_live(self) -> str | None:
        return self.geometry.live("r", self.scope.used)

    def _at(self, element: str) -> CudaScope:
        """The scope inside a nest, at an element."""
        flat = f"({element})" if " " in element else element
        here = coordinates(self.loop.axes, self.extents, flat if len(self.loop.axes) > 1 else element)
        return replace(self.scope, coordinates={**self.scope.coordinates, **here})

    # --- what is done with each element ---

    def _compute(self, chunk: str, element: str, partial: str, inside: str | None) -> None:
        """The nest that goes through a pass's elements, in the order of the ops."""
        ops = [op for op in self.loop.ops if not self._is_done(op)]
        if not ops:
            return
        text = self.text
        with text.block(self.geometry.nest):
            start = len(text.lines)
            text.line(f"e = {element}")
            if not self._touches_fragments(ops):
                self.fragments.stage(ANCHOR, "int32")
                text.line(f"{ANCHOR}[r, k] = e")
            with text.block(None if inside is None else f"if e < {self.loop.extent}:"):
                values = dict(self.scope.names)
                scope = replace(self._at("e"), names=values)
                for name, layout in self.arrays.items():
                    index = self._hidden(layout.index(layout.natural, scope, "", self.loop.axes), name)
                    values[name] = Value(text=f"{names.array(name)}[{index}]", dtype=layout.dtype)
                for op in ops:
                    self._op(op, scope, values, chunk, partial)
            if not any(_ELEMENT.search(line) for line in text.lines[start + 1 :]):
                del text.lines[start]

    def _is_done(self, op: ElementOp) -> bool:
        """Whether the nests of the loads have done all of an op."""
        if isinstance(op, PrivateStore) and isinstance(op.value, Name):
            return self.kept.get(op.value.name) == op.tile
        return isinstance(op, GlobalLoad) and not self._is_read(op.into)

    def _is_read(self, name: str) -> bool:
        for op in self.loop.ops:
            if isinstance(op, PrivateStore) and isinstance(op.value, Name) and self.kept.get(op.value.name) == op.tile:
                continue
            exprs = [getattr(op, "value", None), getattr(op, "where", None)]
            exprs += [index.value for index in getattr(op, "index", ()) if hasattr(index, "value")]
            for expr in exprs:
                if expr is not None and any(isinstance(node, Name) and node.name == name for node in walk(expr)):
                    return True
        return False

    def _touches_fragments(self, ops: list[ElementOp]) -> bool:
        """Whether the nest reads or writes a fragment of known layout."""
        return any(
            isinstance(op, GlobalLoad | PrivateLoad | PrivateStore) or (isinstance(op, GlobalStore) and self._stages())
            for op in ops
        )

    def _op(self, op: ElementOp, scope: CudaScope, values: dict[str, Value], chunk: str, partial: str) -> None:
        text = self.text
        match op:
            case GlobalLoad():
                self._name(op.into, scope.widened(self._place(op, chunk), op.dtype), values)
            case PrivateLoad():
                self._name(op.into, scope.widened(f"{names.tile(op.tile)}[r, k, {chunk}]", op.dtype), values)
            case Compute():
                self._name(op.into, scope.bound(scope.render_as(op.value, op.dtype)), values)
            case PrivateStore():
                text.line(f"{names.tile(op.tile)}[r, k, {chunk}] = {scope.render(op.value).text}")
            case GlobalStore():
                layout = self.layouts[op.tensor]
                value = scope.narrowed(op.value, layout.dtype)
                if self._stages():
                    self.fragments.stage(names.staged(op.tensor), layout.dtype)
                    text.line(f"{names.staged(op.tensor)}[r, k] = {value.text}")
                    return
                index = layout.index(layout.natural, scope, self.geometry.row, self.loop.axes)
                with text.block(self._if_live()):
                    text.line(f"{names.tensor(op.tensor)}[{index}] = {value.text}")
            case Accumulate():
                self._accumulate(op, scope, partial)

    def _name(self, into: str, value: Value, values: dict[str, Value]) -> None:
        """Line that names a value of the element."""
        self.text.line(f"{names.value(into)} = {value.text}")
        values[into] = Value(text=names.value(into), dtype=value.dtype)

    def _accumulate(self, op: Accumulate, scope: CudaScope, partial: str) -> None:
        state = self.reducers[op.reducer]
        if state.strict:
            self._queue(op, scope, state)
        elif op.reducer in self.deferred:
            self._defer(op, scope, state)
        else:
            element = self._element(op, scope)
            absorb(self.text, scope, state, op, slot(state, self.geometry, partial, element), "e")

    def _defer(self, op: Accumulate, scope: CudaScope, state: ReducerState) -> None:
        """A contribution to a reducer of TileLang's; named first, because a value with calls in it cannot be judged."""
        value = scope.render_as(op.value, state.dtype)
        text = value.text
        if not re.fullmatch(r"v_\w+", text):
            text = names.temporary(op.reducer, "value")
            self.text.line(f"{text} = {scope.bound(value).text}")
        where = None
        if op.where is not None:
            condition = names.temporary(op.reducer, "where")
            self.text.line(f"{condition} = {scope.bound(scope.render(op.where)).text}")
            where = f"if {condition} != 0:"
        with self.text.block(where):
            self.text.line(f"T.reducer_update({names.partials(op.reducer)}[r], {text})")

    def _element(self, op: Accumulate, scope: CudaScope) -> str:
        """The element of an array that a contribution is for."""
        if not op.index:
            return "0"
        return self._hidden(array_element(scope, op), op.reducer)

    def _hidden(self, index: str, of: str) -> str:
        """An index into an array that every lane has whole; TileLang takes one that it sees through for a mistake."""
        if index.isdigit():
            return index
        name = names.element(of)
        value = self.scope.call("named_i32", "int32", Value(text=index, dtype="int32"))
        self.text.line(f"{name} = {value.text}")
        return name

    # --- strict folds: a pass's contributions wait in shared memory, and every lane folds them all ---

    def _queue(self, op: Accumulate, scope: CudaScope, state: ReducerState) -> None:
        value = scope.render_as(op.value, state.dtype)
        if op.where is not None:
            helper = "select" if state.dtype == "float32" else "select_i32"
            nothing = Value(text=neutral(state), dtype=state.dtype)
            if nothing.text.startswith("f32"):
                scope.used.add("f32")
            value = scope.call(helper, state.dtype, scope.render(op.where), value, nothing)
        self.fragments.share(names.queue(op.reducer), state.dtype)
        self.text.line(f"{names.queue(op.reducer)}[r, k] = {value.text}")
        if op.index:
            self.fragments.share(names.queued_element(op.reducer), "int32")
            self.text.line(f"{names.queued_element(op.reducer)}[r, k] = {array_element(scope, op)}")

    def _fold(self, op: Accumulate, count: int) -> None:
        text, state = self.text, self.reducers[op.reducer]
        (chain,) = partial_arrays(state)
        slot_ = self.geometry.slot
        text.line("T.sync_threads()")
        with text.block(f"for c in T.serial({count}):"):
            element = "0"
            if op.index:
                element = names.element(op.reducer)
                text.line(f"{element} = {names.queued_element(op.reducer)}[{slot_}, c]")
            held = Value(text=f"{chain.text}[{element}]", dtype=state.dtype)
            queued = Value(text=f"{names.queue(op.reducer)}[{slot_}, c]", dtype=state.dtype)
            text.line(f"{held.text} = {self.scope.combine(state.op, held, queued).text}")
        text.line("T.sync_threads()")

"""One DistributedLoop as text: pass loop, lane loops, per-element ops, tail.

A loop with accumulators and V > 1 keeps each lane's V contiguous scalars in one accumulator; any other loop is free
to walk the pass's L·V elements in order, which is the same ownership and vectorises best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from search.lowering import names
from search.lowering.cpu.geometry import Geometry
from search.lowering.cpu.narrow import NO_BLOCKS, Blocks, Narrow
from search.lowering.cpu.place import Place
from search.lowering.expressions import NARROW, Scope, Value
from search.lowering.indexing import coordinates, join, product
from search.lowering.states import Gathering, absorb, array_element, gathers
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
    RowUpdate,
)
from search.program.ir import Name

LONGEST_EXPLICIT_UNROLL = 4
GATHERED_SCALARS = 8
"""Scalars of a lane that a structured reduction takes in together."""
MOST_UNROLLED_COPIES = 1024
"""Copies of a loop's body that the pass loop is unrolled into at most: gcc took over a minute for 8192 of them."""
SHORTEST_INNER_LOOP = 16
"""Elements that the last axis must have for a loop of its own: fewer fill no vector."""


class Traversal:
    """Writes one loop. ``scope`` knows params, dims and row scalars; ``extents`` the extent of each axis."""

    def __init__(
        self,
        *,
        text: Text,
        geometry: Geometry,
        loop: DistributedLoop,
        scope: Scope,
        layouts: Mapping[str, Layout],
        extents: Mapping[str, int],
        reducers: Mapping[str, ReducerState],
        arrays: Mapping[str, Layout],
        rows: str,
        narrow: Narrow,
    ) -> None:
        self.arrays = {name: layout for name, layout in arrays.items() if set(layout.axes) <= set(loop.axes)}
        self.text, self.geometry, self.loop, self.scope = text, geometry, loop, scope
        self.layouts, self.extents, self.reducers, self.rows = layouts, extents, reducers, rows
        self.narrow = narrow
        # A strict fold takes the elements as they come, whatever lane or partial they belong to.
        self.accumulates = any(isinstance(op, Accumulate) and not reducers[op.reducer].strict for op in loop.ops)
        self.stores = any(isinstance(op, GlobalStore) for op in loop.ops)
        self.by_lane = self.accumulates and geometry.vector > 1
        self.partials = geometry.partials if self.accumulates else 1
        self.inner = self._inner_extent()
        self.gathers = any(isinstance(op, Accumulate) and gathers(reducers[op.reducer], op) for op in loop.ops)
        streams = any(isinstance(op, GlobalStore) and op.streaming for op in loop.ops)
        # A packet that is streamed holds one pass.
        self.depth = max(1, GATHERED_SCALARS // geometry.vector) if self.gathers and not streams else 1
        self.waiting: dict[str, Gathering] | None = None
        """Per reducer what waits to be taken in together; None while each element is taken in by itself."""

    def _inner_extent(self) -> int:
        """How many elements are walked in one go: all, or those of the last axis.

        Quotients and remainders by an extent keep the C compiler from vectorising, so the axes before the last one get
        a loop around, where it makes no difference which lane takes which element: no partials, no private storage.
        """
        owned = any(isinstance(op, Accumulate | PrivateLoad | PrivateStore) for op in self.loop.ops)
        last = self.extents[self.loop.axes[-1]]
        alone = owned or self.arrays or last < SHORTEST_INNER_LOOP
        return self.loop.extent if alone else last

    def write(self) -> None:
        """The whole traversal."""
        outer = self.loop.extent // self.inner
        around = f"T.unroll({outer}, explicit=True)" if outer <= LONGEST_EXPLICIT_UNROLL else f"T.serial({outer})"
        with self.text.block(f"for o in {around}:" if outer > 1 else None):
            passes, left = divmod(self.inner, self.geometry.chunk)
            steps = passes // self.depth
            self._sweep(steps, 0, self.depth)
            if steps * self.depth < passes:
                self._sweep(passes - steps * self.depth, steps * self.depth, 1)
            if left:
                self._tail(passes, left)

    def _sweep(self, steps: int, first: int, depth: int) -> None:
        """``steps`` steps of ``depth`` passes each, from pass ``first`` on."""
        rounds, rest = divmod(steps, self.partials)
        if rounds:
            if rounds > 1:
                self._unroll(min(self.geometry.unroll, max(1, MOST_UNROLLED_COPIES // self._copies())))
            with self.text.block(f"for p in T.serial({rounds}):"):
                self._passes("p", self.partials, first, depth)
        if rest:
            self._passes(str(rounds), rest, first, depth)

    def _copies(self) -> int:
        """How often one round holds the body: partials, rows of a block, the scalars of a lane."""
        scalars = self.geometry.vector if self.by_lane else 1
        return self.partials * self.geometry.row_block * scalars

    def _passes(self, round_: str, count: int, first: int, depth: int) -> None:
        """``count`` steps of one round, each into its own partial."""
        partial = "0" if count == 1 else "k"
        step = product(join(product(round_, self.partials), partial), depth)
        with self.text.block(f"for k in T.unroll({count}, explicit=True):" if count > 1 else None):
            self._packet(join(step, str(first)), partial, depth)

    def _packet(self, pass_: str, partial: str, depth: int) -> None:
        """Full passes, ``depth`` of them together."""
        geometry = self.geometry
        if self.gathers and depth * geometry.vector > 1:
            self._together(pass_, partial, depth)
        elif self.by_lane:
            self._lanes(pass_, partial, geometry.lanes, geometry.vector, 0, main=True)
        else:
            self._flat(pass_, partial, geometry.chunk, main=True)

    def _together(self, pass_: str, partial: str, depth: int) -> None:
        """Each lane goes through its scalars of ``depth`` passes, then takes them into its partial together."""
        lanes, vector = self.geometry.lanes, self.geometry.vector
        lane = "l" if lanes > 1 else "0"
        places = [
            Place(
                pass_=join(pass_, str(number)),
                partial=partial,
                offset=join(product(lane, vector), str(scalar)),
                lane=lane,
                main=True,
                first=0,
                count=1,
            )
            for number in range(depth)
            for scalar in range(vector)
        ]
        self.waiting = {}
        self._nest(f"for l in T.serial({lanes}):" if lanes > 1 else None, None, *places)
        self.waiting = None

    def _tail(self, passes: int, left: int) -> None:
        """What is left after the full passes: ``left`` elements, fewer than one pass."""
        pass_, partial = str(passes), str(passes % self.partials)
        if not self.by_lane:
            self._flat(pass_, partial, left, main=False)
            return
        full, rest = divmod(left, self.geometry.vector)
        if full:
            self._lanes(pass_, partial, full, self.geometry.vector, 0, main=False)
        if rest:
            self._lanes(pass_, partial, 1, rest, full, main=False)

    def _flat(self, pass_: str, partial: str, count: int, *, main: bool) -> None:
        """``count`` elements in order; with V = 1 the offset is the lane."""
        offset = "q" if count > 1 else "0"
        head = f"for q in T.serial({count}):" if count > 1 else None
        place = Place(pass_=pass_, partial=partial, offset=offset, lane=offset, main=main, first=0, count=count)
        self._nest(head, None, place)

    def _lanes(self, pass_: str, partial: str, lanes: int, scalars: int, first: int, *, main: bool) -> None:
        """``lanes`` lanes from ``first`` on, each with ``scalars`` contiguous scalars."""
        lane = join("l", str(first)) if lanes > 1 else str(first)
        scalar = "v" if scalars > 1 else "0"
        offset = join(product(lane, self.geometry.vector), scalar)
        start, count = first * self.geometry.vector, lanes * scalars
        place = Place(pass_=pass_, partial=partial, offset=offset, lane=lane, main=main, first=start, count=count)
        # TileLang writes an explicit unroll out, and is slow on long texts; the C compiler does long ones.
        explicit = scalars <= LONGEST_EXPLICIT_UNROLL
        scalar_loop = f"for v in T.unroll({scalars}, explicit=True):" if explicit else f"for v in T.serial({scalars}):"
        self._nest(
            f"for l in T.serial({lanes}):" if lanes > 1 else None,
            scalar_loop if scalars > 1 else None,
            place,
            unroll_scalars=0 if explicit else scalars,
        )

    def _nest(self, lane_loop: str | None, scalar_loop: str | None, *places: Place, unroll_scalars: int = 0) -> None:
        """Row loops, guard, lane loops, then the ops. The guard stands outside the lanes whenever that is possible."""
        geometry, text, place = self.geometry, self.text, places[0]
        guard = geometry.live(self.rows, self.scope.used) if self.stores else None
        streams = [op for op in self.loop.ops if isinstance(op, GlobalStore) and op.streaming] if place.main else []
        # Rows that stream take turns with one waiting packet, so they are no lanes of a vector.
        by_row = geometry.across_loop is None or lane_loop is not None or bool(streams)
        with text.block(geometry.block_loop):
            if not by_row:
                self._mark(place)
            with text.block(geometry.across_loop), text.block(guard if by_row else None):
                outer = product("o", self.inner) if self.inner != self.loop.extent else "0"
                blocks = self.narrow.blocks(place, self.scope, outer, streamed=bool(streams)) if by_row else NO_BLOCKS
                self.narrow.begin(blocks, place, text, self.scope.used)
                if lane_loop is not None and not self.loop.serial:
                    self._mark(place)
                with text.block(lane_loop):
                    self._unroll(unroll_scalars)
                    with text.block(scalar_loop):
                        for each in places:
                            self._ops(each, None if by_row else guard, blocks, streamed=bool(streams))
                    for waiting in (self.waiting or {}).values():
                        waiting.join(self.scope, geometry.accumulator(place.partial, place.lane))
                self.narrow.end(blocks, place, text, self.scope.used)
                for op in streams:
                    self._stream(op, place)

    def _unroll(self, factor: int) -> None:
        if factor > 1:
            self.scope.used.add("unroll")
            self.text.line(f"unroll({factor})")

    def _mark(self, place: Place) -> None:
        if self.geometry.simd_main if place.main else self.geometry.simd_rest:
            self.scope.used.add("simd")
            self.text.line("simd()")

    def _stream(self, op: GlobalStore, place: Place) -> None:
        """The packet of one pass, written around the caches."""
        layout = self.layouts[op.tensor]
        helper = {"float32": "stream", "int32": "stream_i32"}.get(layout.dtype, "stream_u16")
        self.scope.used.add(helper)
        base = product(place.pass_, self.geometry.chunk)
        if self.inner != self.loop.extent:
            base = join(product("o", self.inner), base)
        target = layout.flat(self.geometry.row, base)
        self.text.line(
            f"{helper}(T.address_of({names.tensor(op.tensor)}[{target}]), "
            f"T.address_of({names.stream(op.tensor)}[0]), {self.geometry.chunk})"
        )

    def _ops(self, place: Place, guard: str | None, blocks: Blocks, *, streamed: bool) -> None:
        element = join(product(place.pass_, self.geometry.chunk), place.offset)
        nested = self.inner != self.loop.extent
        if nested:
            self.text.line(f"i = {element}")
        self.text.line(f"e = o * {self.inner} + i" if nested else f"e = {element}")
        coordinates = dict(self.scope.coordinates)
        coordinates.update(self._coordinates())
        values = dict(self.scope.names)
        scope = replace(self.scope, names=values, coordinates=coordinates)
        for name, layout in self.arrays.items():
            index = layout.index(layout.natural, scope, "", self.loop.axes)
            values[name] = Value(text=f"{names.array(name)}[{self.geometry.slot}, {index}]", dtype=layout.dtype)
        for op in self.loop.ops:
            self._op(op, scope, values, place, guard, blocks, streamed=streamed)

    def _coordinates(self) -> dict[str, str]:
        """Each axis's coordinate from the flattened element ``e``, last axis fastest; or the last one's is ``i``, and
        the others follow from ``o``."""
        nested = self.inner != self.loop.extent
        axes, flat = (self.loop.axes[:-1], "o") if nested else (self.loop.axes, "e")
        return coordinates(axes, self.extents, flat) | ({self.loop.axes[-1]: "i"} if nested else {})

    def _op(
        self,
        op: ElementOp,
        scope: Scope,
        values: dict[str, Value],
        place: Place,
        guard: str | None,
        blocks: Blocks,
        *,
        streamed: bool,
    ) -> None:
        text, geometry = self.text, self.geometry
        match op:
            case GlobalLoad():
                index = self.layouts[op.tensor].index(op.index, scope, geometry.row, self.loop.axes)
                self._load(op, f"{names.tensor(op.tensor)}[{index}]", scope, values, place, blocks)
            case PrivateLoad():
                index = geometry.private(place.pass_, place.offset)
                self._load(op, f"{names.tile(op.tile)}[{index}]", scope, values, place, blocks)
            case Compute():
                value = scope.bound(scope.render_as(op.value, op.dtype))
                text.line(f"{names.value(op.into)} = {value.text}")
                values[op.into] = Value(text=names.value(op.into), dtype=value.dtype)
            case PrivateStore():
                index = geometry.private(place.pass_, place.offset)
                text.line(f"{names.tile(op.tile)}[{index}] = {self._kept(op, scope)}")
            case GlobalStore():
                layout = self.layouts[op.tensor]
                if op.tensor in blocks.stores:
                    text.line(f"{names.block(op.tensor)}[{place.offset}] = {scope.render_float(op.value).text}")
                    return
                value = scope.narrowed(op.value, layout.dtype)
                if streamed and op.streaming:
                    text.line(f"{names.stream(op.tensor)}[{place.offset}] = {value.text}")
                    return
                index = layout.index(layout.natural, scope, geometry.row, self.loop.axes)
                with text.block(guard):
                    text.line(f"{names.tensor(op.tensor)}[{index}] = {value.text}")
            case Accumulate():
                state = self.reducers[op.reducer]
                if self.waiting is not None and gathers(state, op):
                    self.waiting.setdefault(op.reducer, Gathering(text, state)).add(scope, op)
                    return
                accumulate(text, geometry, scope, state, op, place.partial, place.lane, "e")

    def _load(
        self,
        op: GlobalLoad | PrivateLoad,
        stored: str,
        scope: Scope,
        values: dict[str, Value],
        place: Place,
        blocks: Blocks,
    ) -> None:
        """One element as a value; of 16 bits, as bits and value, whichever is needed."""
        into, text = names.value(op.into), self.text
        if op.dtype not in NARROW:
            text.line(f"{into} = {stored}")
            values[op.into] = Value(text=into, dtype=op.dtype)
            return
        if op.into in self.narrow.kept:
            text.line(f"{names.word(op.into)} = {stored}")
            stored = names.word(op.into)
        if op.into in self.narrow.valued:
            block = f"{names.block(op.into)}[{place.offset}]"
            text.line(f"{into} = {block if op.into in blocks.loads else scope.widened(stored, op.dtype).text}")
            values[op.into] = Value(text=into, dtype="float32")

    def _kept(self, op: PrivateStore, scope: Scope) -> str:
        """What a private tile keeps: a value, or the bits of a 16-bit element."""
        if isinstance(op.value, Name) and op.value.name in self.narrow.kept:
            return names.word(op.value.name)
        return scope.render(op.value).text


def accumulate(
    text: Text,
    geometry: Geometry,
    scope: Scope,
    state: ReducerState,
    op: Accumulate | RowUpdate,
    partial: str,
    lane: str,
    place: str = "0",
) -> None:
    """One contribution: to the lane's partial, or to the row's one chain; of an array, to the element that is named.

    ``place`` is the text of the contribution's index among those of its statement.
    """
    element = "0"
    if op.index:
        element = array_element(scope, op)
        if not element.isdigit():
            text.line(f"{names.element(op.reducer)} = {element}")
            element = names.element(op.reducer)
    index = geometry.chain(element) if state.strict else geometry.accumulator(partial, lane, element)
    absorb(text, scope, state, op, index, place)

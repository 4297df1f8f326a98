"""Elements of 16 bits in one traversal: widened to float32 where they are read, narrowed where they are written.

bfloat16 is converted element by element, which compilers vectorise. For float16 the processor has an instruction that
they do not use, so a run of elements goes through a block: converted as a whole before the lanes read it, or after
they wrote it. A load that is only kept (a snapshot) keeps its bits and is not converted at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.lowering import names
from search.lowering.cpu.geometry import Geometry
from search.lowering.cpu.place import Place
from search.lowering.expressions import NARROW, Scope
from search.lowering.indexing import join, product
from search.lowering.tensors import Layout
from search.lowering.text import Text
from search.planning.schedule import Accumulate, DistributedLoop, GlobalLoad, GlobalStore, PrivateLoad, PrivateStore
from search.program.ir import Expr, Name
from search.program.walk import walk

BLOCK_DTYPE = "float16"
SHORTEST_BLOCK = 8
"""Fewer elements are converted one by one: no instruction takes so few."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """What goes through blocks at one place: source text by value, target text by tensor."""

    loads: Mapping[str, str]
    stores: Mapping[str, str]


NO_BLOCKS = Blocks(loads={}, stores={})


class Narrow:
    """The 16-bit accesses of one loop. ``declared`` collects the blocks that the text uses."""

    def __init__(
        self,
        loop: DistributedLoop,
        geometry: Geometry,
        layouts: Mapping[str, Layout],
        tile_dtypes: Mapping[str, str],
        declared: set[str],
    ) -> None:
        self.loop, self.geometry, self.layouts, self.declared = loop, geometry, layouts, declared
        loads = [op for op in loop.ops if isinstance(op, GlobalLoad | PrivateLoad) and op.dtype in NARROW]
        self.narrow = {op.into for op in loads}
        self.kept: set[str] = set()
        """Loads whose bits are kept in a private tile."""
        self.valued: set[str] = set()
        """Loads whose value is needed."""
        for op in loop.ops:
            if isinstance(op, PrivateStore) and tile_dtypes[op.tile] in NARROW:
                assert isinstance(op.value, Name), "only snapshots hold 16-bit elements"
                self.kept.add(op.value.name)
                continue
            exprs: list[Expr | None] = [getattr(op, "value", None), getattr(op, "where", None)]
            if isinstance(op, Accumulate):
                exprs += [index.value for index in op.index]
            for expr in exprs:
                if expr is not None:
                    self.valued |= {node.name for node in walk(expr) if isinstance(node, Name)} & self.narrow

    def blocks(self, place: Place, scope: Scope, outer: str, *, streamed: bool) -> Blocks:
        """What goes through blocks where lanes run over a whole run of elements; ``outer`` is where passes begin."""
        if place.count < SHORTEST_BLOCK:
            return NO_BLOCKS
        element = join(outer, product(place.pass_, self.geometry.chunk), str(place.first))
        loads, stores = {}, {}
        # What this loop itself keeps is not there yet when the lanes begin.
        filled = {op.tile for op in self.loop.ops if isinstance(op, PrivateStore)}
        for op in self.loop.ops:
            if isinstance(op, GlobalLoad) and op.dtype == BLOCK_DTYPE and op.into in self.valued:
                layout = self.layouts[op.tensor]
                index = layout.run(op.index, scope, self.geometry.row, self.loop.axes, element)
                if index is not None:
                    loads[op.into] = f"{names.tensor(op.tensor)}[{index}]"
            elif isinstance(op, PrivateLoad) and op.dtype == BLOCK_DTYPE and op.tile not in filled:
                index = self.geometry.private(place.pass_, str(place.first))
                loads[op.into] = f"{names.tile(op.tile)}[{index}]"
            elif isinstance(op, GlobalStore) and self.layouts[op.tensor].dtype == BLOCK_DTYPE:
                layout = self.layouts[op.tensor]
                if streamed and op.streaming:
                    stores[op.tensor] = f"{names.stream(op.tensor)}[{place.first}]"
                    continue
                index = layout.run(layout.natural, scope, self.geometry.row, self.loop.axes, element)
                if index is not None:
                    stores[op.tensor] = f"{names.tensor(op.tensor)}[{index}]"
        return Blocks(loads=loads, stores=stores)

    def begin(self, blocks: Blocks, place: Place, text: Text, used: set[str]) -> None:
        """Fill the blocks that the lanes will read."""
        for into, source in blocks.loads.items():
            self._convert("load_float16", f"{names.block(into)}[{place.first}]", source, place.count, text, used)
            self.declared.add(into)

    def end(self, blocks: Blocks, place: Place, text: Text, used: set[str]) -> None:
        """Write the blocks that the lanes filled."""
        for tensor, target in blocks.stores.items():
            self._convert("store_float16", target, f"{names.block(tensor)}[{place.first}]", place.count, text, used)
            self.declared.add(tensor)

    @staticmethod
    def _convert(helper: str, target: str, source: str, count: int, text: Text, used: set[str]) -> None:
        used.add(helper)
        text.line(f"{helper}(T.address_of({target}), T.address_of({source}), {count})")

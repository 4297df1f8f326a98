"""What a block keeps: private tiles and staged passes as fragments of known layout, shared queues of strict folds."""

from __future__ import annotations

from collections.abc import Sequence

from search.lowering import names
from search.lowering.cuda.expressions import STORED
from search.lowering.cuda.geometry import Geometry
from search.lowering.text import Text
from search.planning.schedule import PrivateTile

LAYOUT = """

def owners(chunks):
    \"\"\"Which thread owns which element of a row: {vector} contiguous {scalars} of every chunk each.\"\"\"
    return T.Fragment(
        ({rows}, {chunk}, chunks), forward_fn=lambda r, k, c: (r * {width} + k // {vector}, c * {vector} + k % {vector})
    )


PASS = T.Fragment(({rows}, {chunk}), forward_fn=lambda r, k: (r * {width} + k // {vector}, k % {vector}))
"""


class Fragments:
    """The fragments of one kernel; collected while its text is written, declared before it."""

    def __init__(self, geometry: Geometry, tiles: Sequence[PrivateTile]) -> None:
        self.geometry, self.tiles = geometry, {tile.name: tile for tile in tiles}
        self._staged: dict[str, str] = {}
        self._shared: dict[str, str] = {}

    def dtype_of(self, tile: str) -> str:
        """Storage dtype of a private tile."""
        return self.tiles[tile].dtype

    def stage(self, name: str, dtype: str) -> None:
        """A pass's elements in registers."""
        self._staged[name] = dtype

    def share(self, name: str, dtype: str) -> None:
        """A pass's values in shared memory."""
        self._shared[name] = dtype

    def declare(self, text: Text) -> None:
        """Allocations, then the layouts."""
        rows, chunk = self.geometry.rows_per_block, self.geometry.chunk
        kind = "local" if self.geometry.alone else "fragment"
        layouts = {}
        for tile in self.tiles.values():
            chunks = self.geometry.passes(tile.extent)
            text.line(f"{names.tile(tile.name)} = T.alloc_{kind}(({rows}, {chunk}, {chunks}), {STORED[tile.dtype]})")
            layouts[names.tile(tile.name)] = f"owners({chunks})"
        for name, dtype in self._staged.items():
            text.line(f"{name} = T.alloc_{kind}(({rows}, {chunk}), {STORED[dtype]})")
            layouts[name] = "PASS"
        for name, dtype in self._shared.items():
            text.line(f"{name} = T.alloc_shared(({rows}, {chunk}), {STORED[dtype]})")
        if layouts and not self.geometry.alone:
            entries = ", ".join(f"{name}: {layout}" for name, layout in layouts.items())
            text.line(f"T.annotate_layout({{{entries}}})")

    def source(self) -> str:
        """The layouts as functions of the text."""
        geometry = self.geometry
        return LAYOUT.format(
            rows=geometry.rows_per_block,
            chunk=geometry.chunk,
            width=geometry.width,
            vector=geometry.vector,
            scalars="scalar" if geometry.vector == 1 else "scalars",
        )

"""How one packet of W lanes is laid over rows and columns (the CPU mapping), as numbers and as index text.

G = row_block · W/L rows per packet; row slot = r · S + s with S = W/L. In a distributed loop over N elements, element
e belongs to lane (e // V) % L and is reached in pass e // (L·V); what is left over is the tail.
"""

from __future__ import annotations

from dataclasses import dataclass

from search.lowering.indexing import join, product
from search.planning.schedule import Schedule
from search.space.candidate import CpuMapping


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The numbers of a candidate that shape its loops."""

    width: int
    lanes: int
    rows_across: int
    """S: rows that share the packet's lanes."""
    row_block: int
    vector: int
    unroll: int
    partials: int
    simd_main: bool
    simd_rest: bool

    @property
    def slots(self) -> int:
        """G: rows that one packet works on."""
        return self.row_block * self.rows_across

    @property
    def chunk(self) -> int:
        """Elements of one row that one pass covers: L·V."""
        return self.lanes * self.vector

    @property
    def slot(self) -> str:
        """Text of the current row slot."""
        if self.slots == 1:
            return "0"
        if self.rows_across == 1:
            return "r"
        return "s" if self.row_block == 1 else f"r * {self.rows_across} + s"

    @property
    def row(self) -> str:
        """Text of the current row's index, clamped into the tensor for the slots that hang over the last row."""
        return "bx" if self.slots == 1 else f"row[{self.slot}]"

    def live(self, rows: str, used: set[str]) -> str | None:
        """Head of the guard around stores (None: every slot has a row); the helper it calls is added to ``used``.

        A call, because TileLang's simplifier takes ten times as long over a comparison that it can see into.
        """
        if self.slots == 1:
            return None
        first = f"bx * {self.slots}"
        if self.rows_across == 1:
            used.add("live_slot")
            return f"if live_slot({self.slot}, {first}, {rows}):"
        used.add("live_row")
        return f"if live_row({first} + {self.slot}, {rows}):"

    @property
    def block_loop(self) -> str | None:
        """Head of the loop over the rows that are interleaved."""
        return f"for r in T.unroll({self.row_block}, explicit=True):" if self.row_block > 1 else None

    @property
    def across_loop(self) -> str | None:
        """Head of the loop over the rows that share the lanes."""
        return f"for s in T.serial({self.rows_across}):" if self.rows_across > 1 else None

    def accumulator(self, partial: str, lane: str, element: str = "0") -> str:
        """Index text of a partial: ``[elements · row_block · partials, width]``, elements of a reducer array."""
        blocks = product(element, self.row_block * self.partials)
        first = join(blocks, product("r" if self.row_block > 1 else "0", self.partials), partial)
        second = join(product("s" if self.rows_across > 1 else "0", self.lanes), lane)
        return f"{first}, {second}"

    def chain(self, element: str = "0") -> str:
        """Index text of the one chain of the current row's strict fold: ``[elements · row_block, rows_across]``."""
        first = join(product(element, self.row_block), "r" if self.row_block > 1 else "0")
        return f"{first}, {'s' if self.rows_across > 1 else '0'}"

    def private(self, pass_: str, offset: str) -> str:
        """Index text of private storage: packets of S·L·V scalars, one per pass, so that lanes are contiguous."""
        packet = product(pass_, self.rows_across * self.chunk)
        within = join(product("s" if self.rows_across > 1 else "0", self.chunk), offset)
        return f"{'r' if self.row_block > 1 else '0'}, {join(packet, within)}"


def geometry_of(schedule: Schedule) -> Geometry:
    """The geometry that a schedule's candidate asks for."""
    candidate = schedule.candidate
    mapping = candidate.mapping
    assert isinstance(mapping, CpuMapping)
    return Geometry(
        width=candidate.width,
        lanes=mapping.local_lanes,
        rows_across=candidate.width // mapping.local_lanes,
        row_block=mapping.row_block,
        vector=candidate.vector,
        unroll=candidate.unroll,
        partials=candidate.partials,
        simd_main=mapping.simd_scope in ("main", "all"),
        simd_rest=mapping.simd_scope == "all",
    )

"""How a block of threads is laid over rows and columns (the CUDA mapping), as numbers and as index text.

A block works on R rows with W threads each; thread t is lane t % W of row t // W. In a loop over N elements of a row,
element e belongs to lane (e // V) % W and is reached in pass e // (W·V); what is left over is the tail.
"""

from __future__ import annotations

from dataclasses import dataclass

from search.planning.schedule import Schedule
from search.space.candidate import CudaMapping


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The numbers of a candidate that shape its kernel, and the name of the row count."""

    width: int
    rows_per_block: int
    vector: int
    unroll: int
    partials: int
    min_blocks: int
    rows: str

    @property
    def threads(self) -> int:
        """Threads of a block: R·W."""
        return self.width * self.rows_per_block

    @property
    def chunk(self) -> int:
        """K: elements of one row that one pass covers, W·V."""
        return self.width * self.vector

    @property
    def grid(self) -> str:
        """Text of the number of blocks."""
        return self.rows if self.rows_per_block == 1 else f"T.ceildiv({self.rows}, {self.rows_per_block})"

    @property
    def alone(self) -> bool:
        """Whether one thread does one element at a time: nothing is shared out then, and TileLang's layouts have no
        form for a nest without a variable."""
        return self.threads * self.vector == 1

    @property
    def nest(self) -> str:
        """Head of the loop nest over a pass: every row of the block, every element of the pass."""
        kind = "grid" if self.alone else "Parallel"
        return f"for r, k in T.{kind}({self.rows_per_block}, {self.chunk}):"

    @property
    def row(self) -> str:
        """Text of the thread's row; rows that hang over the last one read it again and store nothing."""
        return "bx" if self.rows_per_block == 1 else "row[0]"

    def live(self, slot: str, used: set[str]) -> str | None:
        """Head of the guard that the row in a slot of the block is there (None: it always is).

        A call, because TileLang takes ten times as long over a comparison that it can see into; its helper is added to
        ``used``.
        """
        if self.rows_per_block == 1:
            return None
        used.add("live_row")
        return f"if live_row(bx * {self.rows_per_block} + {slot}, {self.rows}):"

    @property
    def slot(self) -> str:
        """Text of the row's number within the block, outside of nests."""
        return "0" if self.rows_per_block == 1 else f"tx // {self.width}"

    @property
    def lane(self) -> str:
        """Text of the thread's lane outside of nests."""
        return "tx" if self.rows_per_block == 1 else f"tx % {self.width}"

    def passes(self, extent: int) -> int:
        """Passes over a domain, the tail included."""
        return -(-extent // self.chunk)


def geometry_of(schedule: Schedule, rows: str) -> Geometry:
    """The geometry that a schedule's candidate asks for; ``rows`` names the row count."""
    candidate = schedule.candidate
    mapping = candidate.mapping
    assert isinstance(mapping, CudaMapping)
    return Geometry(
        width=candidate.width,
        rows_per_block=mapping.rows_per_block,
        vector=candidate.vector,
        unroll=candidate.unroll,
        partials=candidate.partials,
        min_blocks=mapping.min_blocks,
        rows=rows,
    )

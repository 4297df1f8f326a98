"""Where a program's tiles can live, whatever the candidate: the default list of ``materialize`` depends on it."""

from __future__ import annotations

from collections.abc import Sequence

from search.program.case import Case
from search.program.desugar import desugar
from search.program.ir import Tile
from search.space.uses import Use, column_axes, statement_uses, wide_axes

TILE_BYTES = 4


def crossing_tiles(case: Case, uses: Sequence[Use]) -> dict[str, list[str]]:
    """Tiles that some statement reads over other axes than their own (axes of one point aside), with those axes.

    Its reader's lanes would need elements that other lanes own, so such a tile can only be recomputed.
    """
    owners = {use.statement.name: use.over for use in uses if isinstance(use.statement, Tile)}
    crossing: dict[str, list[str]] = {}
    for use in uses:
        for tile in use.tiles:
            if wide_axes(case, use.over) != wide_axes(case, owners[tile]):
                crossing.setdefault(tile, list(use.over))
    return crossing


def fits_no_output(case: Case) -> bool:
    """True if some tile must be private or recomputed: it crosses lanes, or no output of 32 bits has its axes.

    Such a tile may fit neither storage (private storage is bounded, and what crosses lanes is never stored), so that
    ``recompute`` is the one word under which a long row can run.
    """
    uses = statement_uses(desugar(case.program))
    if crossing_tiles(case, uses):
        return True
    outputs = [tensor for tensor in case.program.tensors if tensor.role == "output" and tensor.aliases is None]
    held = {column_axes(case.program, tensor) for tensor in outputs if case.element_bytes(tensor.name) == TILE_BYTES}
    return any(isinstance(use.statement, Tile) and use.over not in held for use in uses)

"""Where tiles live: in private storage, or in an output that can hold one until its own final store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from search.outcome import Rejected
from search.planning.grouping import Grouping
from search.program.case import Case
from search.program.ir import DType, Name, Store, Tensor, Tile
from search.space.uses import Use, column_axes


@dataclass(frozen=True, kw_only=True)
class Staging:
    """What ``materialize=output`` does: (tile, output) pairs; every other tile stays private."""

    pairs: tuple[tuple[str, str], ...]
    needless: frozenset[str]
    """Tiles that an output could hold but no later loop reads: they are forwarded and stored nowhere."""


def tiles_read_later(uses: Sequence[Use], grouping: Grouping) -> frozenset[str]:
    """Tiles that a later traversal reads. Within its own loop a tile's value is forwarded from op to op."""
    home = {use.statement.name: grouping.loop_of[use.index] for use in uses if isinstance(use.statement, Tile)}
    return frozenset(tile for use in uses for tile in use.tiles if grouping.loop_of[use.index] != home[tile])


def stage_outputs(
    case: Case, uses: Sequence[Use], read_later: Collection[str], dtypes: Mapping[str, DType]
) -> Staging | Rejected:
    """Give each tile that is read later, in program order, the first eligible output that no earlier tile took.

    Rejected (``no_output_staging``, with the obstacle per tile and output) when the program has tiles and no output
    could hold any of them. ``dtypes`` are the tiles' dtypes.
    """
    outputs = [tensor for tensor in case.program.tensors if tensor.role == "output"]
    tiles = [use for use in uses if isinstance(use.statement, Tile)]
    pairs: list[tuple[str, str]] = []
    obstacles: dict[str, dict[str, str]] = {}
    needless: set[str] = set()
    for use in tiles:
        assert isinstance(use.statement, Tile)
        name = use.statement.name
        taken = {output for _, output in pairs}
        obstacles[name] = {}
        for output in outputs:
            obstacle = _obstacle(case, uses, use, output, dtypes[name])
            if obstacle is None and output.name in taken:
                obstacle = "already holds another tile"
            if obstacle is None:
                if name in read_later:
                    pairs.append((name, output.name))
                else:
                    needless.add(name)
                break
            obstacles[name][output.name] = obstacle
    if tiles and not pairs and not needless:
        return Rejected(stage="constraints", reason="no_output_staging", detail={"tiles": obstacles})
    return Staging(pairs=tuple(pairs), needless=frozenset(needless))


def is_the_tile(statement: object, tile: str) -> bool:
    """True for a store whose value is the tile, unchanged."""
    return isinstance(statement, Store) and statement.value == Name(name=tile)


def _obstacle(case: Case, uses: Sequence[Use], tile: Use, output: Tensor, dtype: DType) -> str | None:
    """Why the output cannot hold the tile; None when it can."""
    assert isinstance(tile.statement, Tile)
    name = tile.statement.name
    if case.dtypes[output.name] != dtype:
        return f"its dtype is {case.dtypes[output.name]}, the tile's {dtype}"
    if len(column_axes(case.program, output)) == len(output.axes) or column_axes(case.program, output) != tile.over:
        return "its axes are not the tile's"
    if output.aliases is not None:
        return f"it may share its buffer with {output.aliases}"
    if any(use.reads(output.name) for use in uses):
        return "the program reads it"
    stores = [use.index for use in uses if isinstance(use.statement, Store) and use.statement.tensor == output.name]
    if not stores or min(stores) < tile.index:
        return "it is written before the tile"
    # The tile itself as the output's final value: it goes on standing there.
    kept = is_the_tile(next(use.statement for use in uses if use.index == min(stores)), name)
    if not kept and any(use.index > min(stores) for use in uses if name in use.tiles):
        return "the tile is read after its final store"
    return None

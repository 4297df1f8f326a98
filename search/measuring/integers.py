"""What int32 inputs are drawn from. Child side; numpy.

An input that the program compares with a coordinate (labels, lengths) lies inside that axis, except in the edge rows.
Any other is small in ``normal`` and takes all 32 bits in ``large_offset``. In ``edge_rows`` whole rows are the
smallest, the largest, zero, minus one, these mixed, and all 32 bits; a coordinate also lies just outside its axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from search.program.case import Case
from search.program.desugar import desugar
from search.program.ir import Compare, Expr, Index, Let, Load, Name, Tile
from search.program.walk import placed, statements, walk

Array = npt.NDArray[Any]
SMALLEST, LARGEST = -(2**31), 2**31 - 1
EXTREMES = np.array([SMALLEST, LARGEST, 0, -1], dtype=np.int32)
EDGES = ("smallest", "largest", "zero", "minus_one", "mixed", "all_bits")


def coordinate_extents(case: Case) -> dict[str, int]:
    """Each int32 input that is compared with coordinates, with the largest extent of their axes."""
    program = desugar(case.program)
    behind: dict[str, tuple[set[str], set[str]]] = {}
    """Row scalar or tile → inputs and axes that it was made from."""
    extents: dict[str, int] = {}

    def sources(expr: Expr) -> tuple[set[str], set[str]]:
        tensors: set[str] = set()
        axes: set[str] = set()
        for node in walk(expr):
            if isinstance(node, Load) and case.dtypes[node.tensor] == "int32":
                tensors.add(node.tensor)
            elif isinstance(node, Index):
                axes.add(node.axis)
            elif isinstance(node, Name) and node.name in behind:
                tensors |= behind[node.name][0]
                axes |= behind[node.name][1]
        return tensors, axes

    for pointer, statement in statements(program.body):
        for part in placed(statement, pointer):
            for node in walk(part.expr):
                if isinstance(node, Compare):
                    left, right = sources(node.left), sources(node.right)
                    for tensors, axes in ((left[0], right[1]), (right[0], left[1])):
                        for tensor in tensors if axes else ():
                            extents[tensor] = max(extents.get(tensor, 0), *(case.extent(axis) for axis in axes))
        if isinstance(statement, Let | Tile):
            behind[statement.name] = sources(statement.value)
    return extents


def draw_integers(
    generator: np.random.Generator, shape: tuple[int, ...], *, extent: int | None, wide: bool
) -> npt.NDArray[np.int32]:
    """Values of one input: coordinates below ``extent``, or small numbers, or (``wide``) all 32 bits."""
    if extent is not None:
        return generator.integers(0, extent, size=shape, dtype=np.int32)
    if wide:
        return generator.integers(SMALLEST, LARGEST, size=shape, dtype=np.int32, endpoint=True)
    return generator.integers(-8, 9, size=shape, dtype=np.int32)


def edge_count(extent: int | None) -> int:
    """How many edges an input has; ``extent`` as in :func:`draw_integers`."""
    return len(_edges(extent))


def _edges(extent: int | None) -> tuple[str, ...]:
    return EDGES if extent is None else (*EDGES, "last", "just_outside")


def edge_integers(generator: np.random.Generator, rows: Array, sequence: Array, extent: int | None) -> tuple[str, ...]:
    """Overwrite rows (rows × elements) in place, row r by the edge of ``sequence[r]``; the edges that some row got."""
    edges = _edges(extent)
    outside = 0 if extent is None else extent
    made: Mapping[str, Any] = {
        "smallest": SMALLEST,
        "largest": LARGEST,
        "zero": 0,
        "minus_one": -1,
        "mixed": generator.choice(EXTREMES, size=rows.shape),
        "all_bits": generator.integers(SMALLEST, LARGEST, size=rows.shape, dtype=np.int32, endpoint=True),
        "last": outside - 1,
        "just_outside": outside,
    }
    met = []
    for number, name in enumerate(edges):
        chosen = sequence % len(edges) == number
        if chosen.any():
            rows[chosen] = made[name] if np.ndim(made[name]) == 0 else made[name][chosen]
            met.append(name)
    return tuple(met)

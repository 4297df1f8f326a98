"""How many rows of a case are simulated: enough for every path of a kernel, whatever the case has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search.lowering.contract import Launch
from search.program.case import Case
from search.program.ir import Load, Loop, Name
from search.program.walk import placed, statements, walk

MIN_ROWS = 3
"""A first, an inner and a last one, also where a block has one row."""


def simulated_rows(case: Case, launch: Launch) -> int:
    """Rows that are simulated: two full blocks and a block with a single row, and never more than the case has.

    All of them where their number decides more than how often the kernel runs: where it is the extent of another axis
    too, or stands in an expression, a subscript or a loop.
    """
    dim = case.program.row_axis.dim
    shared = sum(axis.dim == dim for axis in case.program.axes) > 1
    if shared or dim in _names(case):
        return case.rows
    return min(case.rows, max(MIN_ROWS, 2 * launch.rows_per_block + 1))


def with_rows(case: Case, rows: int) -> Case:
    """The same case with another number of rows."""
    return replace(case, dims={**case.dims, case.program.row_axis.dim: rows})


def _names(case: Case) -> set[str]:
    """Every name that an expression, a subscript or a loop's count of the program holds."""
    return set(_named(case))


def _named(case: Case) -> Iterator[str]:
    for pointer, statement in statements(case.program.body):
        if isinstance(statement, Loop):
            yield statement.count
        for part in placed(statement, pointer):
            for node in walk(part.expr):
                if isinstance(node, Name):
                    yield node.name
                elif isinstance(node, Load):
                    yield from (name for subscript in node.index for name, _ in subscript.terms)

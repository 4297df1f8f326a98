"""Reducer arrays: the column axes along which a finalized one is read."""

from __future__ import annotations

from search.program.ir import Program, Reducer


def array_axes(program: Program, reducer: Reducer) -> tuple[str, ...]:
    """One column axis per entry of the reducer's shape; () for a scalar reducer.

    An axis stands for itself, a dim for the first column axis over it that the shape does not have yet. KeyError with
    the entry for which there is none.
    """
    found: list[str] = []
    for entry in reducer.shape:
        found.append(entry_axis(program, entry, (*reducer.shape, *found)))
    return tuple(found)


def entry_axis(program: Program, entry: str, taken: tuple[str, ...]) -> str:
    """The axis of one entry of a shape; KeyError if there is none."""
    for axis in program.axes:
        if axis.kind == "column" and (axis.name == entry or (axis.dim == entry and axis.name not in taken)):
            return axis.name
    raise KeyError(entry)

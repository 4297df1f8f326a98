"""Which statements share one traversal: consecutive distributed statements over the same axes are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.planning.effects import overtakes
from search.program.ir import Finalize, Let, Loop, Program, Reducer, StageBoundary, Update
from search.space.uses import LoopEnd, Use


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The traversals of a program."""

    loop_of: dict[int, int]
    """Distributed statement (its index in the body) to the number of its loop."""
    late: frozenset[int]
    """Row-level statements that must stay behind the loop in front of them, because they need its result or write."""


def group_statements(program: Program, uses: Sequence[Use]) -> Grouping:
    """Merge as far as dependencies allow.

    A distributed statement joins the loop in front of it when it runs over the same axes, no ``stage`` lies between, no
    serial loop begins or ends there, and it names no row scalar or array that is known only after that loop: the result
    of a collective behind the loop's start, or a scalar that follows from one. Reducer openings and other row scalars
    in between move before the loop. A store that shares its buffer with an input waits for the reads of other elements,
    and an update of a strict fold for the fold's earlier updates.
    """
    loop_of: dict[int, int] = {}
    late: set[int] = set()
    open_axes: tuple[str, ...] = ()
    late_names: set[str] = set()
    loop = -1
    merged: list[Use] = []
    reducers = [use.statement for use in uses if isinstance(use.statement, Reducer)]
    strict = {reducer.name for reducer in reducers if reducer.order == "strict"}
    folded: set[str | None] = set()
    """Strict folds that went on since the loop was opened: one site is through before the next begins."""
    for use in uses:
        statement = use.statement
        chain = statement.reducer if isinstance(statement, Update) and statement.reducer in strict else None
        if use.distributed:
            merges = use.over == open_axes and not use.scalars & late_names and chain not in folded
            if not merges or any(overtakes(program, use, earlier) for earlier in merged):
                loop += 1
                open_axes = use.over
                late_names = set()
                merged, folded = [], set()
            merged.append(use)
            loop_of[use.index] = loop
        elif isinstance(statement, StageBoundary | Loop | LoopEnd):
            open_axes = ()
            late_names = set()
        elif open_axes and not isinstance(statement, Reducer):
            if isinstance(statement, Let) and not use.scalars & late_names:
                continue
            late.add(use.index)
            if isinstance(statement, Finalize):
                late_names.update(statement.results)
            elif isinstance(statement, Let):
                late_names.add(statement.name)
        folded |= {chain} - {None}
    return Grouping(loop_of=loop_of, late=frozenset(late))

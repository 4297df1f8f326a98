"""Reads of an input whose buffer an output shares: which candidates would read it again after it was overwritten.

An input's value is what its buffer held when the row began. A candidate that keeps it (a snapshot, a private tile, a
row scalar) may overwrite the buffer; one that reads global memory again may not, once something lies in between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from search.outcome import Rejected
from search.program.case import Case
from search.program.ir import Load, Program, StageBoundary, Store
from search.space.uses import Use, natural_index, row_level


def reload_rejection(
    case: Case, written: Sequence[Use], uses: Sequence[Use], cached: Collection[str]
) -> Rejected | None:
    """Rejected (``reload_across_effect``) when an input is read across an aliasing write or a stage; else None.

    ``written`` are the uses of the program as it stands, ``uses`` those of the candidate's view: a tile that is
    recomputed reads its inputs at its own statement, by meaning, and again at each reader, in fact.
    """
    for tensor in case.program.tensors:
        if tensor.aliases is None or tensor.aliases in cached:
            continue  # a snapshot is taken before the write
        shared = tensor.aliases
        write = next(u.index for u in written if isinstance(u.statement, Store) and u.statement.tensor == tensor.name)
        reads = [use for use in uses if use.reads(shared)]
        meant = [use for use in written if use.reads(shared)]
        effect = _between(case.program, shared, write, reads, meant, written)
        if effect is not None:
            detail: dict[str, Any] = {
                "tensor": shared,
                "overwritten_by": tensor.name,
                "reads": sorted({use.index for use in (*reads, *meant)}),
                "effect": effect,
                "message": "the input is read after an effect on its shared buffer; cache it, or keep it in a tile",
            }
            return Rejected(stage="constraints", reason="reload_across_effect", detail=detail)
    return None


def overtakes(program: Program, store: Use, earlier: Use) -> bool:
    """True when a store, merged with an earlier statement, would overwrite elements that it has still to read."""
    if not isinstance(store.statement, Store):
        return False
    shared = program.tensor(store.statement.tensor).aliases
    return any(
        load.tensor == shared and not _own(program, load) and not row_level(program, load) for load in earlier.loads
    )


def _between(
    program: Program, shared: str, write: int, reads: Sequence[Use], meant: Sequence[Use], written: Sequence[Use]
) -> int | None:
    """The statement whose effect lies between the first and the last read; None when there is none."""
    stages = [use.index for use in written if isinstance(use.statement, StageBoundary)]
    again = [
        use for use in reads if not all(_kept(program, load, reads, write, stages) for load in _loads(use, shared))
    ]
    places = [use.index for use in (*again, *(meant if again else ()))]
    if not places:
        return None
    crossed = [stage for stage in stages if min(places) < stage < max(places)]
    if crossed:
        return crossed[0]
    late = any(place > write for place in places)
    # The store itself may read what it overwrites: the same element, before it is written.
    foreign = any(use.index == write and not _own(program, load) for use in again for load in _loads(use, shared))
    return write if late or foreign else None


def _kept(program: Program, load: Load, reads: Sequence[Use], write: int, stages: Sequence[int]) -> bool:
    """True for a row scalar that is loaded once: before the write, no stage and no loop's end before its readers."""
    if not row_level(program, load):
        return False
    readers = [use for use in reads if load in use.loads]
    first, last = readers[0], readers[-1]
    inside = all(use.loops[: len(first.loops)] == first.loops for use in readers)
    return first.index <= write and inside and not any(first.index < stage < last.index for stage in stages)


def _loads(use: Use, tensor: str) -> list[Load]:
    return [load for load in use.loads if load.tensor == tensor]


def _own(program: Program, load: Load) -> bool:
    return load.index == natural_index(program.tensor(load.tensor))

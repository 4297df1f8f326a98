"""What the expressions of an emitted module may name: params, dims, row scalars, counters of loops."""

from __future__ import annotations

from search.lowering import names
from search.lowering.expressions import Scope, Value
from search.planning.schedule import Schedule
from search.program.ir import Loop
from search.program.walk import statements


def known_names(schedule: Schedule, constants: Scope, *, rows: str, slot: str) -> dict[str, Value]:
    """Params and dims as constants (the row dim as the argument ``rows``), row scalars at ``slot`` of their storage.

    ``constants`` renders float params; nothing else of it is used.
    """
    case = schedule.case
    out: dict[str, Value] = {}
    for name, value in case.params.items():
        whole = isinstance(value, int)
        out[name] = Value(text=str(int(value)), dtype="int32") if whole else constants.constant(float(value))
    for name in case.program.dims:
        row_dim = name == case.program.row_axis.dim
        out[name] = Value(text=rows if row_dim else str(int(case.dims[name])), dtype="int32")
    for name, dtype in schedule.scalar_dtypes:
        out[name] = Value(text=f"{names.scalar(name)}[{slot}]", dtype=dtype)
    for _, statement in statements(case.program.body):
        if isinstance(statement, Loop) and statement.index is not None:
            out[statement.index] = Value(text=names.counter(statement.index), dtype="int32")
    return out

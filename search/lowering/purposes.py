"""What a step is for, as the comment above its lines."""

from __future__ import annotations

from search.lowering import names
from search.planning.schedule import (
    Collective,
    DistributedLoop,
    OpenReducer,
    RowCompute,
    RowLoad,
    RowStore,
    RowUpdate,
    SerialLoop,
    Step,
)


def purpose(step: Step) -> str:
    """A few words."""
    match step:
        case OpenReducer():
            return f"{names.checked(step.reducer)}: every partial starts from the identity"
        case DistributedLoop():
            axes = " x ".join(names.checked(axis) for axis in step.axes)
            return f"over {axes}" + (": snapshot" if step.purpose == "snapshot" else "")
        case SerialLoop():
            return f"{step.trips} trips"
        case RowUpdate():
            return f"{names.checked(step.reducer)}: the row itself contributes once"
        case Collective():
            results = ", ".join(names.checked(name) for name in step.results)
            if step.strict:
                return f"{names.checked(step.reducer)}: its one chain is {results}"
            return f"{names.checked(step.reducer)}: partials and lanes combine into {results}"
        case RowStore():
            return f"one value per row of {names.checked(step.tensor)}"
        case RowLoad() | RowCompute():
            return f"row scalar {names.checked(step.into)}"

"""How an emitted module begins: which kernel, at what shape, for which candidate."""

from __future__ import annotations

import json

from search.lowering import names
from search.lowering.text import Text
from search.planning.schedule import Schedule


def opening(schedule: Schedule, header: str) -> str:
    """The module's docstring. ``header``: a sentence on what belongs to the header beside it."""
    case = schedule.case
    columns = {d: n for d, n in sorted(case.dims.items()) if d != case.program.row_axis.dim}
    shape = ", ".join(f"{names.checked(d)}={int(n)}" for d, n in columns.items())
    text = Text()
    text.line(f'"""{names.checked(case.kernel)} with {shape or "no columns"}; any number of rows.')
    text.line("")
    text.line(f"Candidate: {json.dumps(schedule.candidate.document(), sort_keys=True)}")
    text.line(header)
    text.line('"""')
    text.line("")
    return text.source()

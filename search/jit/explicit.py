"""From a kernel or program, its dims and some knobs to a case and a complete candidate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from search.errors import InvalidInput, Problem
from search.planning.default import default_candidate
from search.program.case import Case
from search.program.document import dump_program
from search.program.ir import Program
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, TargetKind
from search.space.knobs import WIDTH_WORD
from search.space.resolve import resolve_space

Named = str | Mapping[str, Any] | Program
"""A built-in kernel's name, a program's document, or a Program."""


def explicit_case(
    what: Named,
    *,
    dims: Mapping[str, int] | None,
    params: Mapping[str, float | int] | None,
    dtypes: Mapping[str, str] | None,
) -> Case:
    """The case; params and dtypes that are left out take their defaults. InvalidInput with every problem."""
    document: dict[str, Any] = (
        {"kernel": what}
        if isinstance(what, str)
        else {"program": dump_program(what) if isinstance(what, Program) else what}
    )
    given = {"dims": dims, "params": params, "dtypes": dtypes}
    return resolve_case(document | {name: value for name, value in given.items() if value is not None})


def explicit_candidate(
    case: Case, candidate: Candidate | Mapping[str, Any] | None, target: TargetKind = "cpu"
) -> Candidate:
    """The candidate that the caller means: complete, or some knobs (the others as in the target's untuned default).

    Mapping knobs stand beside the others or inside ``mapping``. InvalidInput naming the knob; the private budget is
    not applied, legality is.
    """
    default = default_candidate(case, target)
    if candidate is None:
        return default
    chosen: Any = candidate.document() if isinstance(candidate, Candidate) else candidate
    if not isinstance(chosen, Mapping):
        message = "a candidate is an object: knob to value"
        raise InvalidInput([Problem(field="/candidate", value=str(chosen)[:80], message=message, allowed=None)])
    knobs = _flat(default.document())
    if target == "cpu":
        knobs["local_lanes"] = WIDTH_WORD
    knobs |= _flat(chosen)
    try:
        space = resolve_space({name: [value] for name, value in knobs.items()}, case, target, pointer="", exact=True)
    except InvalidInput as error:
        # each knob has one value here, not a list of them
        problems = [
            Problem(
                field="/candidate" + re.sub(r"^(/[^/]+)/0(?=/|$)", r"\1", problem.field),
                value=problem.value,
                message=problem.message,
                allowed=problem.allowed,
            )
            for problem in error.problems
        ]
        raise InvalidInput(problems) from None
    return next(space.candidates())


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in document.items() if name != "mapping"}
    mapping = document.get("mapping", {})
    return flat | (dict(mapping) if isinstance(mapping, Mapping) else {"mapping": mapping})

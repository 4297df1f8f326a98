"""Trials beside their twins: facts about machine code that one trial alone cannot show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from search.lowering.contract import CodeFacts
from search.lowering.merged import reload_merged
from search.space.candidate import Candidate
from search.space.twin import cached_twin
from tuner_service.db.models import Trial


def merged_reloads(session: Session, trials: Sequence[Any]) -> dict[str, bool]:
    """Trial id → whether the compiler merged its reloads, some or all, where that can be told.

    It can by the code alone if that has fewer loads than the text, else beside the code of the cached twin.
    ``trials``: rows with ``id, case_id``, and ``candidate, code`` as JSON text.
    """
    wanted: dict[tuple[str, str], tuple[str, CodeFacts]] = {}
    found: dict[str, bool] = {}
    for trial in trials:
        if trial.code is None or '"memory_instructions"' not in trial.code:
            continue  # a CPU's code says nothing about it
        twin = cached_twin(Candidate.from_document(json.loads(trial.candidate)))
        if twin is None:
            continue
        facts = CodeFacts.from_document(json.loads(trial.code))
        if reload_merged(facts):
            found[trial.id] = True
        else:
            wanted[trial.case_id, twin.digest] = trial.id, facts
    if not wanted:
        return found
    query = select(Trial.case_id, Trial.digest, Trial.code).where(
        Trial.case_id.in_(sorted({case_id for case_id, _ in wanted})),
        Trial.digest.in_(sorted({digest for _, digest in wanted})),
        Trial.code.is_not(None),
    )
    for case_id, digest, code in session.execute(query):
        one = wanted.get((case_id, digest))
        if one is None or code is None:
            continue
        trial_id, facts = one
        merged = reload_merged(facts, CodeFacts.from_document(code))
        if merged is not None:
            found[trial_id] = merged
    return found

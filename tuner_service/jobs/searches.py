"""The trials that a case's search left in the ledger, as freezing and evidence read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from tuner_service.db.queries.trials import list_trials

_PAGE_TRIALS = 1000


def case_trials(session: Session, job_id: str, case_index: int) -> list[Mapping[str, Any]]:
    """Every trial document of a case, its default included, in canonical order."""
    trials: list[Mapping[str, Any]] = []
    cursor: str | None = None
    while True:
        page = list_trials(session, job_id, case_index=case_index, cursor=cursor, limit=_PAGE_TRIALS)
        trials += page["items"]
        cursor = page["next"]
        if cursor is None:
            return trials

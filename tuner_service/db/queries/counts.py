"""How many there are: for operators, who ask every few seconds. Each count reads one index, and no trial."""

from __future__ import annotations

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from tuner_service.db.models import PRUNING, Job
from tuner_service.db.models_catalogs import Acceptance


def jobs_by_state(session: Session) -> dict[str, int]:
    """State → jobs in it; a state without any is left out."""
    return _counted(session, select(Job.state, func.count()).where(Job.state != PRUNING).group_by(Job.state))


def acceptances_by_state(session: Session) -> dict[str, int]:
    """State → acceptances in it; a state without any is left out."""
    return _counted(session, select(Acceptance.state, func.count()).group_by(Acceptance.state))


def _counted(session: Session, query: Select[str, int]) -> dict[str, int]:
    return {row[0]: row[1] for row in session.execute(query)}

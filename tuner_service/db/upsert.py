"""Adding what another may add at the same moment: ``INSERT … ON CONFLICT``, which both databases have."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tuner_service.db.models import Base


def insert(session: Session, table: type[Base]) -> Any:
    """An INSERT into a table that knows ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    assert session.bind is not None
    dialect: Any = sqlite if session.bind.dialect.name == "sqlite" else postgresql
    return dialect.insert(table)

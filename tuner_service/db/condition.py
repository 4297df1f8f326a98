"""In what condition the database is: one word, and the reason when it is not ``ok``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from sqlalchemy import text

from tuner_service.db.engine import Database
from tuner_service.db.schema import schema_state
from tuner_service.errors import DatabaseBusy, DatabaseFull, DatabaseProblem

Condition = Literal["ok", "locked", "full", "unavailable", "outdated"]
PATIENCE_SECONDS = 0.2
MINIMUM_FREE_BYTES = 1 << 20
"""With less left on the disk the next job would not fit."""


def condition(database: Database) -> tuple[Condition, str | None]:
    """The word and the reason. Reads; writes only when the last write failed, to see whether writing works again."""
    try:
        found = schema_state(database)
        if found.state != "ready":
            return "outdated", f"the database {database.place} cannot be used as it is: {found.message}"
        if reason := _no_space(database):
            return "full", reason
        if database.write_problem is not None:
            _try_to_write(database)
    except DatabaseBusy as problem:
        return "locked", str(problem)
    except DatabaseFull as problem:
        return "full", str(problem)
    except DatabaseProblem as problem:
        return "unavailable", str(problem)
    return "ok", None


def _try_to_write(database: Database) -> None:
    """Writes what stands there already; a success makes ``write_problem`` None. DatabaseProblem."""
    with database.within(PATIENCE_SECONDS).write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = version_num"))


def _no_space(database: Database) -> str | None:
    if not database.is_sqlite:
        return None
    try:
        free_bytes = shutil.disk_usage(Path(database.place).parent).free
    except OSError:
        return None  # then reading has failed too, and says it better
    if free_bytes >= MINIMUM_FREE_BYTES:
        return None
    return f"no space left for the database {database.place}: {free_bytes} bytes are free on its disk"

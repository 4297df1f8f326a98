"""The state of a database's schema, beside the one that this program works with, and what to type if it is not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from alembic.runtime.migration import MigrationContext

from tuner_service.db import (
    models_artifacts,  # noqa: F401  # its tables belong to the metadata
    models_catalogs,  # noqa: F401
    models_deployment,  # noqa: F401
    models_workers,  # noqa: F401
    postgres,
)
from tuner_service.db.engine import Database
from tuner_service.db.migrate import revisions, tables_of_others, upgrade
from tuner_service.db.queue_schema import queue_schema_fault
from tuner_service.errors import DatabaseOutdated

Word = Literal["ready", "empty", "outdated", "newer", "foreign", "unsuitable"]
"""Empty: no tables. Outdated: made by an older version. Foreign: tables that no version of ours made like this.
Unsuitable: a server, or an encoding, that the service cannot work with."""


@dataclass(frozen=True, kw_only=True)
class SchemaState:
    """What was found. ``pending``: revisions that an upgrade would apply, in order; ``message``: what to do."""

    database: str
    state: Word
    revision: str | None
    head: str
    pending: tuple[str, ...]
    message: str

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "pending": list(self.pending)}


def schema_state(database: Database, *, command: str = "tuner db upgrade") -> SchemaState:
    """Looks, and changes nothing: a SQLite file that is not there is not made. DatabaseProblem when it cannot be read.

    ``command``: what brings this database to the newest revision, for the message.
    """
    known = revisions()
    if database.is_sqlite and not Path(database.place).exists():
        return _state(database, "empty", None, known, f"it is not set up yet; type: {command}")
    with database.read() as session:
        connection = session.connection()
        fault = None if database.is_sqlite else postgres.unsuitable(connection)
        if fault is not None:
            return _state(database, "unsuitable", None, known, fault)
        revision = MigrationContext.configure(connection).get_current_revision()
        if revision is None:
            if others := tables_of_others(connection):
                message = f"its tables ({others}) were not made by this program; name another database"
                return _state(database, "foreign", None, known, message)
            return _state(database, "empty", None, known, f"it is not set up yet; type: {command}")
        if revision not in known:
            message = f"it is at revision {revision}, which this version (at {known[-1]}) does not know; update tuner"
            return _state(database, "newer", revision, known, message)
        if revision != known[-1]:
            message = f"it is at revision {revision}, and this version works with {known[-1]}; back it up, then type: "
            return _state(database, "outdated", revision, known, message + command)
        fault = queue_schema_fault(connection)
    if fault is not None:
        return _state(database, "foreign", revision, known, fault)
    return _state(database, "ready", revision, known, "it is at this version's revision")


def require_ready(database: Database, *, command: str = "tuner db upgrade") -> None:
    """Nothing when a service can work with this database; an empty SQLite is set up first.

    An empty PostgreSQL is not: who deploys migrates on purpose, and a wrong URL must not become a new, empty service.
    DatabaseOutdated says what to type; DatabaseProblem.
    """
    found = schema_state(database, command=command)
    if found.state == "empty" and database.is_sqlite:
        upgrade(database)
    elif found.state != "ready":
        raise DatabaseOutdated(f"the database {database.place} cannot be used yet: {found.message}")


def _state(database: Database, state: Word, revision: str | None, known: list[str], message: str) -> SchemaState:
    pending: list[str] = []
    if state in ("empty", "outdated"):
        pending = known if revision is None else known[known.index(revision) + 1 :]
    return SchemaState(
        database=database.place,
        state=state,
        revision=revision,
        head=known[-1],
        pending=tuple(pending),
        message=message,
    )

"""Schema migrations, run from Python: the same Alembic scripts from a checkout or an installed wheel.

There is no way back: a step that was taken may have changed rows. Restore a backup instead.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tuner_service.db import postgres
from tuner_service.db.engine import Database
from tuner_service.errors import DatabaseUnavailable

TABLE_LOCK_SECONDS = 60
"""How long a step waits for the transactions of running services to let a table go."""
SHOWN_TABLES = 5
_UPGRADING = 0x74756E65726462  # "tunerdb"; the leader of the API processes holds another
"""Who holds PostgreSQL's advisory lock of this number migrates."""


def revisions() -> list[str]:
    """Every revision of this program, oldest first."""
    scripts = ScriptDirectory.from_config(migration_config())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def upgrade(database: Database) -> None:
    """Brings the schema to the newest revision; every step or none. Of two at once one waits, and finds it done.

    Raises DatabaseProblem; DatabaseUnavailable when the database is newer than this program, or not ours.
    """
    config = migration_config()
    known = revisions()
    try:
        with database.write() as session:
            connection = session.connection()
            if not database.is_sqlite:
                _wait_for_others(connection, database.place)
            revision = MigrationContext.configure(connection).get_current_revision()
            if revision is not None and revision not in known:
                message = f"the database {database.place} is at revision {revision}, which this version does not know"
                raise DatabaseUnavailable(message)
            if revision is None and (others := tables_of_others(connection)):
                message = f"the tables of the database {database.place} ({others}) were not made by this program"
                raise DatabaseUnavailable(f"{message}; name another database")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            if not database.is_sqlite:
                postgres.sort_by_code_points(connection)
    except (DBAPIError, CommandError) as error:
        cause = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
        message = f"the database {database.place} cannot be brought to this version's schema: {cause}"
        raise DatabaseUnavailable(message) from error


def tables_of_others(connection: Connection) -> str:
    """Names of the first tables of a database that this program has never set up; empty where there are none."""
    names = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
    return ", ".join([*names[:SHOWN_TABLES], *(["…"] if len(names) > SHOWN_TABLES else [])])


def _wait_for_others(connection: Connection, place: str) -> None:
    """SQLite's writer has the file to itself; PostgreSQL needs a lock for it, and time for large tables."""
    if fault := postgres.unsuitable(connection):
        raise DatabaseUnavailable(f"the database {place} cannot be used: {fault}")
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SET LOCAL lock_timeout = 0"))
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADING})"))
    connection.execute(text(f"SET LOCAL lock_timeout = '{TABLE_LOCK_SECONDS}s'"))


def migration_config() -> Config:
    """Alembic's configuration, without an ini file."""
    spec = importlib.util.find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseUnavailable("the migrations package is not installed")
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(spec.submodule_search_locations)))).replace("%", "%%"))
    return config

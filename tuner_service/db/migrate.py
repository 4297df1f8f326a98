"""Schema migrations, run from Python: the same Alembic scripts from a checkout or an installed wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from tuner_service.db.engine import Database
from tuner_service.errors import DatabaseUnavailable


def upgrade(database: Database) -> None:
    """Brings the schema to the newest revision; every step or none.

    Raises DatabaseProblem; DatabaseUnavailable when the database is newer than this program.
    """
    config = migration_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    try:
        with database.write() as session:
            connection = session.connection()
            revision = MigrationContext.configure(connection).get_current_revision()
            if revision is not None and revision not in known:
                message = f"the database {database.place} is at revision {revision}, which this version does not know"
                raise DatabaseUnavailable(message)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except (DBAPIError, CommandError) as error:
        cause = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
        message = f"the database {database.place} cannot be brought to this version's schema: {cause}"
        raise DatabaseUnavailable(message) from error


def at_head(database: Database) -> bool:
    """True when the schema is the one that this program expects. DatabaseProblem when it cannot be read."""
    head = ScriptDirectory.from_config(migration_config()).get_current_head()
    with database.read() as session:
        return MigrationContext.configure(session.connection()).get_current_revision() == head


def migration_config() -> Config:
    """Alembic's configuration, without an ini file."""
    spec = importlib.util.find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseUnavailable("the migrations package is not installed")
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(spec.submodule_search_locations)))).replace("%", "%%"))
    return config

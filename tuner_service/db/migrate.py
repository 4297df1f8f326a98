"""Schema migrations, run from Python: the same Alembic scripts from a checkout or an installed wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from tuner_service.db.engine import Database
from tuner_service.errors import DatabaseProblem, DatabaseUnavailable


def upgrade(database: Database) -> None:
    """Brings the schema to the newest revision; every step or none.

    Raises DatabaseProblem; DatabaseUnavailable when the database is newer than this program.
    """
    config = migration_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with database.write() as session:
        connection = session.connection()
        revision = MigrationContext.configure(connection).get_current_revision()
        if revision is not None and revision not in known:
            raise DatabaseUnavailable(f"the database is at revision {revision}, which this version does not know")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def at_head(database: Database) -> bool:
    """True when the schema is the one that this program expects; False when it is not or cannot be read."""
    head = ScriptDirectory.from_config(migration_config()).get_current_head()
    try:
        with database.read() as session:
            return MigrationContext.configure(session.connection()).get_current_revision() == head
    except DatabaseProblem:
        return False


def migration_config() -> Config:
    """Alembic's configuration, without an ini file."""
    spec = importlib.util.find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseUnavailable("the migrations package is not installed")
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(spec.submodule_search_locations)))).replace("%", "%%"))
    return config

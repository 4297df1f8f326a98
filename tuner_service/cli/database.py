"""The database of some settings, looked at and migrated by a command itself, without a service."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.errors import DatabaseProblem, ServiceError
from tuner_service.settings import Settings

if TYPE_CHECKING:  # imported where they are used: the database would slow every other command down
    from tuner_service.db.schema import SchemaState


def look(settings: Settings) -> SchemaState:
    """The state of the schema; nothing is changed. CommandError (UNREACHABLE) when the database cannot be read."""
    from tuner_service.db.engine import Database
    from tuner_service.db.schema import schema_state

    database = Database(settings.resolved_database_url)
    try:
        return schema_state(database, command=settings.upgrade_command)
    except DatabaseProblem as problem:
        raise CommandError(str(problem), status=ExitStatus.UNREACHABLE) from problem
    finally:
        database.close()


def bring_up(settings: Settings) -> None:
    """Brings the schema to the newest revision. CommandError: UNREACHABLE when the database cannot do it,
    BAD_INPUT when a service runs on the data directory whose file it is.
    """
    from tuner_service.db.engine import Database
    from tuner_service.db.migrate import upgrade
    from tuner_service.workers.datadir import DataDir

    with ExitStack() as held:
        try:
            if settings.database_url is None:
                # A service that runs on it is of another version, or there were nothing to do.
                taken = DataDir(settings.data_dir)
                taken.lock()
                held.callback(taken.unlock)
            database = Database(settings.resolved_database_url)
            held.callback(database.close)
            upgrade(database)
        except DatabaseProblem as problem:
            raise CommandError(str(problem), status=ExitStatus.UNREACHABLE) from problem
        except ServiceError as error:
            raise CommandError(str(error)) from error

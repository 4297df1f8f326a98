"""The database of some settings, looked at and migrated by a command itself, without a service."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.errors import DatabaseOutdated, DatabaseProblem, ServiceError
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


def recorded_settings(settings: Settings, *, change: Mapping[str, str]) -> list[dict[str, Any]]:
    """What all processes of the deployment have alike, by name, after these were changed.

    CommandError: UNREACHABLE when the database cannot be used, BAD_INPUT when it is not at this version's schema, is
    SQLite, which has one process, or processes run.
    """
    from tuner_service.db import agreement
    from tuner_service.db.engine import Database
    from tuner_service.db.queries import deployment
    from tuner_service.db.schema import require_ready

    database = Database(settings.resolved_database_url)
    try:
        if database.is_sqlite:
            raise CommandError(f"{database.place} is a file, and has one process: nothing to agree on")
        require_ready(database, command=settings.upgrade_command)
        if change:
            agreement.change(database, change, who=f"tuner db settings on {socket.gethostname()}")
        with database.read() as session:
            return [fact for name, fact in deployment.facts(session).items() if name in agreement.AGREED]
    except DatabaseProblem as problem:
        outdated = isinstance(problem, DatabaseOutdated)
        status = ExitStatus.BAD_INPUT if outdated else ExitStatus.UNREACHABLE
        raise CommandError(str(problem), status=status) from problem
    except ServiceError as error:
        raise CommandError(str(error)) from error
    finally:
        database.close()

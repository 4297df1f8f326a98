"""The task queue's tables in PostgreSQL: Procrastinate's own schema, of one pinned version, applied by our migrations.

The table's comment says which schema was applied, so that a database of another version is told from ours.
"""

from __future__ import annotations

import hashlib
import importlib.metadata

from sqlalchemy.engine import Connection

PROCRASTINATE_VERSION = "3.10.0"
SCHEMA_SHA256 = "c70ec4b400a60ad9592787653aae5ae77ae41bf801d56b5bd2712751a07f2009"
"""Of the schema file of that version. A new version that changes it needs a migration of ours."""
_MARK = f"procrastinate {PROCRASTINATE_VERSION}, schema {SCHEMA_SHA256}"


def queue_schema_sql() -> str:
    """The statements that create the queue in an empty database.

    RuntimeError when the installed package brings another schema than the one that this version was written for.
    """
    from procrastinate.schema import SchemaManager  # only deployments on PostgreSQL have it

    text = str(SchemaManager.get_schema())
    if hashlib.sha256(text.encode()).hexdigest() != SCHEMA_SHA256:
        installed = importlib.metadata.version("procrastinate")
        raise RuntimeError(
            f"procrastinate {installed} is installed, whose schema is not that of {PROCRASTINATE_VERSION}; "
            f"install procrastinate=={PROCRASTINATE_VERSION}"
        )
    # Ours: tasks are asked for by job, and a key is looked for among waiting and running tasks alike.
    return (
        f"{text}\n"
        "CREATE INDEX tuner_queue_job ON procrastinate_jobs ((args->>'job_id'));\n"
        "CREATE INDEX tuner_queue_key ON procrastinate_jobs (queueing_lock);\n"
        f"COMMENT ON TABLE procrastinate_jobs IS '{_MARK}';\n"
    )


def create_queue(connection: Connection) -> None:
    """Creates the queue's tables, types and functions. Nothing on SQLite: the embedded engine keeps no queue."""
    if connection.dialect.name == "postgresql":
        # Many statements in one text: the driver takes that only where nothing is to be filled in.
        connection.exec_driver_sql(queue_schema_sql(), execution_options={"no_parameters": True})


def queue_schema_fault(connection: Connection) -> str | None:
    """Why the queue in this database is not the one that this version works with, and what to do; None when it is."""
    if connection.dialect.name != "postgresql":
        return None
    row = connection.exec_driver_sql(
        "SELECT to_regclass('procrastinate_jobs') IS NOT NULL, "
        "obj_description(to_regclass('procrastinate_jobs'), 'pg_class')"
    ).one()
    if not row[0]:
        return "the task queue's tables are missing; restore a backup"
    if row[1] != _MARK:
        return f"the task queue's tables are those of {row[1] or 'another program'}, not of {_MARK}"
    return None

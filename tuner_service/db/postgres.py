"""PostgreSQL: how a connection is made, what it may wait for, and what the server's error codes mean."""

from __future__ import annotations

import math
import time
from typing import Any

from sqlalchemy import URL, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from tuner_service.db.models import Base
from tuner_service.errors import DatabaseBusy, DatabaseFull, DatabaseProblem, DatabaseUnavailable

MINIMUM_VERSION = 15
"""Of the server."""
CONNECT_SECONDS = 10
"""A server that does not answer for so long is taken for unreachable."""
SILENT_SECONDS = 25
"""After so long without a sign of the other side, either side takes a connection for cut."""
STATEMENT_SECONDS = 120
"""The server ends a statement that takes longer."""
IDLE_SECONDS = 120
"""The server ends a transaction whose client says nothing for so long, so that its locks go."""
POOL_SECONDS = 1.0
"""How long one try waits for a connection of the pool."""
FRESH_SECONDS = 1.0
"""A connection that was used so lately is not asked whether it is still there before it is used again."""

_BUSY = {
    "55P03": "a lock was not given up in time",
    "40P01": "two transactions waited for each other",
    "40001": "another transaction came first",
    "57014": "a statement took too long",
    "53300": "the server has no connection left",
}
_UNAVAILABLE_CLASSES = ("08", "28", "3D", "53", "57", "58", "XX")
"""Connection, authorization, catalog name, resources, operator intervention, system, internal."""
_UNAVAILABLE = ("25006", "25P03", "25P04", "42501", "42P01", "3F000")
"""A standby, a transaction that was idle or lasted too long, no privilege, no table, no schema."""
_NO_CONNECTION_LEFT = ("too many clients", "remaining connection slots", "too many connections")
"""The server refuses a connection before there is a code that the driver could hand on."""


def engine_options(url: URL, *, connections: int) -> dict[str, Any]:
    """Options of ``create_engine``: at most ``connections`` of this process, and a cut cable is noticed.

    What the URL says itself (``?connect_timeout=3``) wins.
    """
    wanted: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": SILENT_SECONDS - 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
        "fallback_application_name": "tuner",
        # Prepared statements break behind PgBouncer, and when a migration changes a column under a running service.
        "prepare_threshold": None,
    }
    kept = (connections + 1) // 2
    return {
        "connect_args": {name: value for name, value in wanted.items() if name not in url.query},
        "pool_size": kept,
        "max_overflow": connections - kept,
        "pool_timeout": POOL_SECONDS,
        "pool_use_lifo": True,
    }


def prepare(connection: Any, *, lock_wait_seconds: float) -> None:
    """What a new connection may wait for, told to the server in one statement; and texts that it would refuse.

    Not in the connection's startup options, which PgBouncer does not hand on.
    """
    milliseconds = {
        "lock_timeout": max(1, round(lock_wait_seconds * 1000)),
        "statement_timeout": STATEMENT_SECONDS * 1000,
        "idle_in_transaction_session_timeout": IDLE_SECONDS * 1000,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
    }
    seconds = {"tcp_keepalives_idle": SILENT_SECONDS - 15, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
    told = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in (milliseconds | seconds).items())
    before, connection.autocommit = connection.autocommit, True
    connection.execute(f"SELECT {told}")
    connection.autocommit = before
    connection.adapters.register_dumper(str, _text_dumper())


def ask_idle_connections(engine: Engine) -> None:
    """Has each connection that lay in the pool for a while asked whether it is still there, before it is lent.

    What SQLAlchemy's ``pool_pre_ping`` does every time: a round trip for each short transaction.
    """

    def lay(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["lies_since"] = time.monotonic()

    def ask(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if time.monotonic() - record.info.get("lies_since", math.inf) < FRESH_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except Exception as error:
            # The pool makes a new one, and knows that all the older ones may be gone too.
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", lay)
    event.listen(engine, "checkout", ask)


def translated(error: Exception, place: str) -> DatabaseProblem | None:
    """The typed form of a driver's error; None where it is a bug of ours (a bad statement, a broken constraint)."""
    driver = getattr(error, "orig", error)
    text = " ".join(str(driver).split())
    code = str(getattr(driver, "sqlstate", None) or "")
    if code == "53100":
        return DatabaseFull(f"no space left for the database {place}: {text}")
    if code in _BUSY or any(words in text for words in _NO_CONNECTION_LEFT):
        return DatabaseBusy(f"the database {place} is busy: {_BUSY.get(code, _BUSY['53300'])}: {text}")
    gone = bool(getattr(error, "connection_invalidated", False))
    unreachable = not code and isinstance(error, OperationalError | InterfaceError)
    if gone or unreachable or code in _UNAVAILABLE or code[:2] in _UNAVAILABLE_CLASSES:
        return DatabaseUnavailable(f"the database {place} cannot be used: {text}")
    return None


def unsuitable(connection: Connection) -> str | None:
    """Why the service cannot work with this server or database at all; None when it can."""
    version, encoding = connection.exec_driver_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
    ).one()
    if version < MINIMUM_VERSION * 10_000:
        return f"its server is PostgreSQL {version // 10_000}; {MINIMUM_VERSION} or newer is needed"
    if encoding != "UTF8":
        return f"its encoding is {encoding}; create it anew with ENCODING 'UTF8'"
    return None


def sort_by_code_points(connection: Connection) -> None:
    """Every text column of ours gets the collation "C", whatever the database's own is.

    Keys then compare by their bytes, as everywhere else in the program; and an index stays right when the server's C
    library comes to sort a language differently, which a new image of the server may bring.
    """
    found = connection.exec_driver_sql(
        "SELECT table_name, column_name, data_type, character_maximum_length FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND data_type IN ('character varying', 'text') "
        "AND collation_name IS DISTINCT FROM 'C' AND NOT (collation_name IS NULL AND EXISTS "
        "(SELECT FROM pg_database WHERE datname = current_database() AND datlocprovider = 'c' "
        "AND datcollate IN ('C', 'POSIX'))) ORDER BY table_name, ordinal_position"
    ).all()
    changes: dict[str, list[str]] = {}
    for table, column, kind, length in found:
        if table in Base.metadata.tables:
            sized = kind if length is None else f"{kind}({length})"
            changes.setdefault(table, []).append(f'ALTER COLUMN "{column}" TYPE {sized} COLLATE "C"')
    for table, columns in changes.items():
        connection.exec_driver_sql(f'ALTER TABLE "{table}" {", ".join(columns)}')


def _text_dumper() -> Any:
    """PostgreSQL's texts cannot hold NUL. What a compiler or a caller said with one is kept all the same, with U+FFFD
    in its place; an id with one is then nobody's, as it should be."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    return WithoutNul

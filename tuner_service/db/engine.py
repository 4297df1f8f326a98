"""Database: short read and write transactions over one URL, with SQLite's rough edges made typed errors."""

from __future__ import annotations

import copy
import errno
import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from tuner_service.database_url import parse_database_url
from tuner_service.errors import DatabaseBusy, DatabaseFull, DatabaseProblem, DatabaseUnavailable

WRITE = "tuner_write"
"""Execution option that marks a connection's transactions as writing ones."""
CONNECT_SECONDS = 10
"""A database server that does not answer for so long is taken for unreachable."""


class Database:
    """One database. Thread-safe; ``read`` and ``write`` each open one transaction and end it.

    SQLite runs in WAL mode, so readers never wait. It has one writer: writers of this process take turns at a
    lock, and a writer begins with ``BEGIN IMMEDIATE`` so that it never fails half-way for want of the lock.
    """

    def __init__(self, url: str, *, lock_wait_seconds: float = 30.0) -> None:
        self.url = parse_database_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.lock_wait_seconds = lock_wait_seconds
        self._turn = threading.Lock()
        self._write = _LastWrite()
        options: dict[str, Any] = {"connect_args": {"timeout": 1.0}}
        if not self.is_sqlite:
            options = {"connect_args": {"connect_timeout": CONNECT_SECONDS}, "pool_pre_ping": True}
        # More connections than the API and the engine have threads: a reader never waits for another.
        self.engine: Engine = create_engine(self.url, json_serializer=_json, pool_size=16, max_overflow=112, **options)
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        self._writing = self.engine.execution_options(**{WRITE: True})

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one consistent snapshot; what it changes is never stored.

        Raises DatabaseProblem.
        """
        with self._typed(), Session(self.engine, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits once, when the block ends well; otherwise nothing of it is stored.

        Raises DatabaseBusy after ``lock_wait_seconds`` at the lock, DatabaseFull, DatabaseUnavailable.
        """
        deadline = time.monotonic() + self.lock_wait_seconds
        try:
            if not self._turn.acquire(timeout=self.lock_wait_seconds):
                raise DatabaseBusy(f"the database {self.place} stayed locked: another writer of this service waits too")
            try:
                with self._typed(), Session(self._writing, expire_on_commit=False) as session:
                    self._begin(session, deadline)
                    yield session
                    session.commit()
            finally:
                self._turn.release()
        except DatabaseProblem as problem:
            self._write.problem = problem
            raise
        self._write.problem = None

    def within(self, lock_wait_seconds: float) -> Database:
        """The same database for a caller that waits no longer than this at the write lock."""
        view = copy.copy(self)
        view.lock_wait_seconds = lock_wait_seconds
        return view

    @property
    def place(self) -> str:
        """The database for people: its file, or its URL without the password."""
        return str(self.url.database) if self.is_sqlite else self.url.render_as_string()

    @property
    def write_problem(self) -> DatabaseProblem | None:
        """Why the last write failed, or what a write waits for now; None when the last one succeeded."""
        return self._write.problem

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            problem = _translated(error, self)
            if problem is None:
                raise
            raise problem from error

    def _begin(self, session: Session, deadline: float) -> None:
        """Takes the write lock, trying again while another process has it."""
        while True:
            try:
                session.connection()
                return
            except DBAPIError as error:
                session.rollback()
                problem = _translated(error, self)
                if not isinstance(problem, DatabaseBusy) or time.monotonic() >= deadline:
                    raise
                self._write.problem = problem  # known long before the patience of this caller is over
                time.sleep(0.02)

    def close(self) -> None:
        """Closes every pooled connection."""
        self.engine.dispose()


def _json(value: Any) -> str:
    """JSON text that every reader takes: a number that is not finite becomes its name."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver's own rule begins writers too late
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # a recorded trial outlives a power cut too
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


class _LastWrite:
    """What came of the last write, known to every view of a database."""

    problem: DatabaseProblem | None = None


def _translated(error: DBAPIError, database: Database) -> DatabaseProblem | None:
    """The typed form of a driver's error; None where it is a bug of ours (a bad statement, a broken constraint)."""
    text, place = " ".join(str(error.orig).split()), database.place
    lowered = text.lower()
    if "is full" in lowered or (isinstance(error.orig, OSError) and error.orig.errno == errno.ENOSPC):
        return DatabaseFull(f"no space left for the database {place}: {text}")
    if "is locked" in lowered or "is busy" in lowered:
        return DatabaseBusy(f"the database {place} stayed locked by another process: {text}")
    broken = ("unable to open", "disk i/o", "readonly", "not a database", "malformed", "no such table")
    unreachable = not database.is_sqlite and isinstance(error, OperationalError | InterfaceError)
    if any(word in lowered for word in broken) or error.connection_invalidated or unreachable:
        return DatabaseUnavailable(f"the database {place} cannot be used: {text}")
    return None

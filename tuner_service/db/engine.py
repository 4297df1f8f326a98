"""Database: short read and write transactions over one URL, SQLite's or PostgreSQL's, with typed errors."""

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

from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.orm import Session

from tuner_service.database_url import parse_database_url, without_password
from tuner_service.db import postgres
from tuner_service.errors import DatabaseBusy, DatabaseFull, DatabaseProblem, DatabaseUnavailable

WRITE = "tuner_write"
"""Execution option that marks a connection's transactions as writing ones."""
DEFAULT_CONNECTIONS = 10
"""Most connections of one process to a PostgreSQL, whose 100 several processes share."""
RETRY_SECONDS = 0.02


class Database:
    """One database. Thread-safe; ``read`` and ``write`` each open one transaction and end it.

    SQLite runs in WAL mode, so readers never wait. It has one writer: writers of this process take turns at a
    lock, and a writer begins with ``BEGIN IMMEDIATE`` so that it never fails half-way for want of the lock.

    PostgreSQL has many. Who reads what it then writes first locks the row that this is about (``lock_job``,
    ``lock_acceptance``), and what two may add at once is added with ``ON CONFLICT``. Locks are taken in the order
    idempotency key, alias, job or acceptance, device, so that no two wait for each other.
    """

    def __init__(self, url: str, *, lock_wait_seconds: float = 30.0, connections: int = DEFAULT_CONNECTIONS) -> None:
        """``connections``: the most that this process opens to a PostgreSQL."""
        self.url = parse_database_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._given_url, self._usual_wait_seconds = url, lock_wait_seconds
        self.lock_wait_seconds = lock_wait_seconds
        self._turn = threading.Lock()
        self._write = _LastWrite()
        if self.is_sqlite:
            # More connections than the API and the engine have threads: a reader never waits for another.
            options: dict[str, Any] = {"connect_args": {"timeout": 1.0}, "pool_size": 16, "max_overflow": 112}
        else:
            options = postgres.engine_options(self.url, connections=connections)
        self.engine: Engine = create_engine(self.url, json_serializer=_json, **options)
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._reading, self._writing = self.engine, self.engine.execution_options(**{WRITE: True})
        else:
            event.listen(
                self.engine,
                "connect",
                lambda connection, _record: postgres.prepare(connection, lock_wait_seconds=lock_wait_seconds),
            )
            postgres.ask_idle_connections(self.engine)
            self._reading = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self._writing = self.engine.execution_options(isolation_level="READ COMMITTED")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one consistent snapshot; what it changes is never stored.

        Raises DatabaseProblem.
        """
        deadline = time.monotonic() + self.lock_wait_seconds
        with self._typed(), Session(self._reading, autoflush=False) as session:
            if not self.is_sqlite:
                self._begin(session, deadline, writing=False)
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits once, when the block ends well; otherwise nothing of it is stored.

        Raises DatabaseBusy after ``lock_wait_seconds`` at the lock, DatabaseFull, DatabaseUnavailable.
        """
        deadline = time.monotonic() + self.lock_wait_seconds
        try:
            with self._taking_turns(), self._typed(), Session(self._writing, expire_on_commit=False) as session:
                self._begin(session, deadline, writing=True)
                if not self.is_sqlite and self.lock_wait_seconds != self._usual_wait_seconds:
                    session.execute(text(f"SET LOCAL lock_timeout = {max(1, round(self.lock_wait_seconds * 1000))}"))
                yield session
                session.commit()
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
        return str(self.url.database) if self.is_sqlite else without_password(self._given_url)

    @property
    def write_problem(self) -> DatabaseProblem | None:
        """Why the last write failed, or what a write waits for now; None when the last one succeeded."""
        return self._write.problem

    @contextmanager
    def _taking_turns(self) -> Iterator[None]:
        """SQLite's one writer at a time, within this process."""
        if not self.is_sqlite:
            yield
            return
        if not self._turn.acquire(timeout=self.lock_wait_seconds):
            raise DatabaseBusy(f"the database {self.place} stayed locked: another writer of this service waits too")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, NoConnectionLeft) as error:
            problem = self._translated(error)
            if problem is None:
                raise
            raise problem from error

    def _begin(self, session: Session, deadline: float, *, writing: bool) -> None:
        """Takes a connection and SQLite's write lock, trying again while others have them."""
        while True:
            try:
                session.connection()
                return
            except (DBAPIError, NoConnectionLeft) as error:
                session.rollback()
                problem = self._translated(error)
                if not isinstance(problem, DatabaseBusy) or time.monotonic() >= deadline:
                    raise
                if writing:
                    self._write.problem = problem  # known long before the patience of this caller is over
                time.sleep(RETRY_SECONDS)

    def _translated(self, error: DBAPIError | NoConnectionLeft) -> DatabaseProblem | None:
        """The typed form of an error; None where it is a bug of ours."""
        if isinstance(error, NoConnectionLeft):
            return DatabaseBusy(f"every connection of this process to the database {self.place} is in use")
        return _translated(error, self.place) if self.is_sqlite else postgres.translated(error, self.place)

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


def _translated(error: DBAPIError, place: str) -> DatabaseProblem | None:
    """The typed form of SQLite's error; None where it is a bug of ours (a bad statement, a broken constraint)."""
    said = " ".join(str(error.orig).split())
    lowered = said.lower()
    if "is full" in lowered or (isinstance(error.orig, OSError) and error.orig.errno == errno.ENOSPC):
        return DatabaseFull(f"no space left for the database {place}: {said}")
    if "is locked" in lowered or "is busy" in lowered:
        return DatabaseBusy(f"the database {place} stayed locked by another process: {said}")
    broken = ("unable to open", "disk i/o", "readonly", "not a database", "malformed", "no such table")
    if any(word in lowered for word in broken) or error.connection_invalidated:
        return DatabaseUnavailable(f"the database {place} cannot be used: {said}")
    return None

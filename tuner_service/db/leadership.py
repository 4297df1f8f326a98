"""Which API process advances jobs: the one whose session holds an advisory lock. It also hears what others announce.

PostgreSQL only. The lock belongs to a connection of its own, so it is free as soon as that session ends, however it
ends; a process that lost its connection knows within a second that it leads no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from tuner_service.db.engine import Database

log = logging.getLogger(__name__)

WAKE_CHANNEL = "tuner_wake"
"""Notices on it carry the id of a job that should be looked at soon."""
LOCK_NUMBER = 0x74756E6572
"""Of the advisory lock: one service of this name per database."""
CHECK_SECONDS = 1.0
"""How often the connection is tried, and a free seat asked for."""
STOP_SECONDS = 0.2
"""How soon it notices that it is to stop."""
MAXIMUM_RETRY_SECONDS = 10.0


class Leadership:
    """Strives to lead until stopped. Thread-safe; one thread of its own."""

    def __init__(self, database: Database, *, gained: Callable[[], None], heard: Callable[[str], None]) -> None:
        """``gained`` is called each time that this process begins to lead, ``heard`` with each job announced then."""
        self._database, self._gained, self._heard = database, gained, heard
        self._leads, self._stopping = False, threading.Event()
        self._thread = threading.Thread(target=self._strive, name="leadership", daemon=True)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that advances jobs, as far as it knows."""
        return self._leads

    def start(self) -> None:
        """Begins to strive; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Gives the lead back."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _strive(self) -> None:
        pause_seconds = CHECK_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                with self._database.engine.connect() as connection:
                    connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                    connection.detach()  # not one of the pool's: it is held for as long as this process lives
                    self._hold(connection)
            except Exception as error:  # the driver's own kinds too: nothing may end this thread
                log.warning("the lead is lost, or cannot be asked for: %s", " ".join(str(error).split()))
            finally:
                self._leads = False
            pause_seconds = CHECK_SECONDS if time.monotonic() - began > 2 * CHECK_SECONDS else 2 * pause_seconds
            self._stopping.wait(min(pause_seconds, MAXIMUM_RETRY_SECONDS))

    def _hold(self, connection: Connection) -> None:
        connection.execute(text(f"LISTEN {WAKE_CHANNEL}"))
        while not self._stopping.is_set():
            if self._leads:
                connection.execute(text("SELECT 1"))
            elif connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": LOCK_NUMBER}):
                self._leads = True
                log.info("this process advances jobs now")
                self._gained()
            self._listen(connection)

    def _listen(self, connection: Connection) -> None:
        """Hears notices for a second."""
        driver: Any = connection.connection.dbapi_connection
        until = time.monotonic() + CHECK_SECONDS
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            for notice in driver.notifies(timeout=min(left, STOP_SECONDS), stop_after=1):
                if self._leads:
                    self._heard(str(notice.payload))


def announce_wake(database: Database, job_id: str) -> None:
    """Tells the process that leads to look at a job soon. DatabaseProblem."""
    with database.write() as session:
        session.execute(text("SELECT pg_notify(:channel, :job_id)"), {"channel": WAKE_CHANNEL, "job_id": job_id})

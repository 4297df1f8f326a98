"""One embedded service per database: it performs every task itself, and two would perform each other's again.

On PostgreSQL who leads has it (``db.leadership``): free as soon as that session ends, taken again after a restart of
the server. For a SQLite file outside the data directory a locked file beside it stands, which dies with its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tuner_service.db.engine import Database
from tuner_service.db.leadership import Leadership
from tuner_service.errors import DatabaseInUse, DatabaseUnavailable
from tuner_service.pid_lock import PidLock

PATIENCE_SECONDS = 5.0
"""A server may take a moment to see that the service before has ended."""
_POLL_SECONDS = 0.02


class SoleUse:
    """The right of one process to work on a database by itself. Thread-safe."""

    def __init__(
        self,
        database: Database,
        *,
        gained: Callable[[], None] = lambda: None,
        within: Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """``gained``: called each time that it is taken, again after an outage of the server too. ``within``: a folder
        that this process has locked already, so that a file in it needs no lock of its own."""
        self._database, self._within, self._patience_seconds = database, within, patience_seconds
        self._leadership = (
            None if database.is_sqlite else Leadership(database, gained=gained, heard=lambda job_id: None)
        )
        self._file: PidLock | None = None

    @property
    def held(self) -> bool:
        """Whether this process may work; false while the connection that says so is gone."""
        return self._leadership is None or self._leadership.leads

    def take(self) -> None:
        """Once. Raises DatabaseInUse when another process works on it, DatabaseUnavailable."""
        if self._leadership is None:
            self._lock_file()
            return
        self._leadership.start()
        deadline = time.monotonic() + self._patience_seconds
        while not self._leadership.leads:
            if time.monotonic() >= deadline:
                raise DatabaseInUse(
                    f"another `tuner serve` works on {self._database.place}; stop it, or run every service of this "
                    f"database with TUNER_ENGINE=postgres"
                )
            time.sleep(_POLL_SECONDS)

    def give_back(self) -> None:
        """For the next one. Idempotent."""
        if self._leadership is not None:
            self._leadership.close()
        if self._file is not None:
            self._file.release()

    def _lock_file(self) -> None:
        file = Path(self._database.place).resolve()
        if self._within is not None and file.is_relative_to(self._within.resolve()):
            return
        self._file = PidLock(file.with_name(file.name + ".lock"))
        try:
            holder = self._file.take()
        except OSError as error:
            raise DatabaseUnavailable(f"cannot lock the database: {self._file.path}: {error.strerror}") from None
        if holder is not None:
            raise DatabaseInUse(
                f"{file} is in use by the service with pid {holder}; stop it or give another TUNER_DATABASE_URL"
            )

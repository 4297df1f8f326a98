"""Shared artifacts in the database: nothing more to run, and one thing to back up."""

from __future__ import annotations

from collections.abc import Mapping

from tuner_service.db.engine import Database
from tuner_service.db.queries.artifacts import artifact_bytes, put_artifacts


class DatabaseBlobs:
    """``search.lowering.blobs.Blobs`` in a table. What cannot be reached is a DatabaseProblem, as everywhere."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str, *, limit_bytes: int) -> bytes | None:
        """See ``Blobs.get``. DatabaseProblem."""
        with self._database.read() as session:
            return artifact_bytes(session, name, limit_bytes=limit_bytes)

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """See ``Blobs.put``; all of them or none. DatabaseProblem."""
        with self._database.write() as session:
            put_artifacts(session, blobs)

    def close(self) -> None:
        """The database is its owner's to close."""

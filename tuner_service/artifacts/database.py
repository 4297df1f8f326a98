"""Shared artifacts in the database: nothing more to run, and one thing to back up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tuner_service.db.engine import Database
from tuner_service.db.queries.artifacts import artifact_bytes, put_artifacts, remove_artifacts, resting_artifacts

_NAMES_AT_ONCE = 5000
_REMOVED_AT_ONCE = 100


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

    def resting(self, kind: str, *, seconds: float) -> Iterator[str]:
        """See ``Blobs.resting``. DatabaseProblem."""
        after = ""
        while True:
            with self._database.read() as session:
                names = resting_artifacts(session, kind, seconds=seconds, after=after, limit=_NAMES_AT_ONCE)
            yield from names
            if len(names) < _NAMES_AT_ONCE:
                return
            after = names[-1]

    def remove(self, names: Sequence[str], *, seconds: float) -> int:
        """See ``Blobs.remove``; in short transactions. DatabaseProblem."""
        removed = 0
        for start in range(0, len(names), _REMOVED_AT_ONCE):
            with self._database.write() as session:
                removed += remove_artifacts(session, names[start : start + _REMOVED_AT_ONCE], seconds=seconds)
        return removed

    def close(self) -> None:
        """The database is its owner's to close."""

"""The copies of artifacts on a worker's machine: what it did not use for as long as ``tuner prune`` said goes."""

from __future__ import annotations

import logging
import time

from search.lowering.store import ArtifactStore
from tuner_service.db.engine import Database
from tuner_service.db.queries.deployment import COPIES_REST, facts
from tuner_service.errors import DatabaseProblem

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""How often it is asked whether somebody pruned."""


class OwnCopies:
    """One worker's. Not thread-safe."""

    def __init__(self, database: Database, store: ArtifactStore) -> None:
        """``store``: never the only place; what goes is fetched or built again when it is wanted."""
        self._database, self._store = database, store
        self._looked: float | None = None
        self._done: str | None = None
        """When that was asked which was done last."""

    def look(self) -> None:
        """Does what was asked of all since the last look; now and then. What fails is tried again."""
        if self._looked is not None and time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            with self._database.read() as session:
                asked = facts(session).get(COPIES_REST)
            if asked is None or asked["recorded_at"] == self._done:
                return
            removed = self._store.trim(seconds=float(asked["value"]))
        except (DatabaseProblem, OSError) as error:
            log.warning("copies of artifacts could not be looked through: %s", error)
            return
        self._done = asked["recorded_at"]
        log.info("%d copies of artifacts went that were not used for %s s", removed, asked["value"])

"""Artifacts that nothing refers to any more leave the store that machines share, or that the only machine has.

Whoever builds or fetches something puts it before the ledger refers to it, and so makes it young. What is old when the
store is listed, named nowhere when the ledger is read after that, and still old when it is removed, is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from tuner_service.db.engine import Database
from tuner_service.db.queries import pruning

REST_SECONDS = 86_400.0
"""Nothing younger goes, whatever is asked for: between putting and referring lie minutes, and at most an hour for
which a process takes what it put for young (``KNOWN_SECONDS``)."""
TRIALS_AT_ONCE = 5000
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Store(Protocol):
    """``search.lowering.blobs.Blobs`` of machines, or ``search.lowering.store.ArtifactStore`` of one: see there."""

    def resting(self, kind: str, *, seconds: float) -> Iterator[str]:
        """Names that begin with ``kind/`` and that nobody put for so long."""
        ...

    def remove(self, names: Sequence[str], *, seconds: float) -> int:
        """Remove those of these that nobody put for so long, up to now; how many."""
        ...


def sweep(database: Database, blobs: Store, *, seconds: float) -> int:
    """Removes libraries and sources that nobody put for so long and nothing names, and the records of builds that
    nobody used for so long: how many blobs went. DatabaseProblem, ArtifactsUnavailable, OSError: some may be gone then.

    Headers stay: they are few, and sources name them. A record of a build is a note, and made again by the next build.
    """
    seconds = max(seconds, REST_SECONDS)
    removed = blobs.remove(list(blobs.resting("built", seconds=seconds)), seconds=seconds)
    old: dict[str, list[str]] = {}
    for kind in ("libraries", "sources"):
        for name in blobs.resting(kind, seconds=seconds):
            file = name.partition("/")[2]
            old.setdefault(file.partition(".")[0] or file, []).append(name)
    if old:
        _leave_out_referenced(database, old)
    return removed + blobs.remove(sorted(name for names in old.values() for name in names), seconds=seconds)


def _leave_out_referenced(database: Database, old: dict[str, list[str]]) -> None:
    """Takes out every sha256 that the ledger has anywhere."""
    with database.read() as session:
        for text in pruning.texts_with_artifacts(session):
            for sha256 in _SHA256.findall(text):
                old.pop(sha256, None)
    after = ""
    while old:
        with database.read() as session:
            rows = pruning.artifacts_of_trials(session, after=after, limit=TRIALS_AT_ONCE)
        for _, source_sha256, artifact in rows:
            for sha256 in (source_sha256, *_SHA256.findall(artifact)):
                old.pop(sha256, None)
        if len(rows) < TRIALS_AT_ONCE:
            return
        after = rows[-1][0]

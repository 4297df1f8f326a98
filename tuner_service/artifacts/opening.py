"""From the setting ``TUNER_ARTIFACTS`` to a place for shared artifacts: one literal registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from search.lowering.artifact_cache import ArtifactCache
from search.lowering.blobs import Blobs, DirectoryBlobs
from tuner_service.artifacts.database import DatabaseBlobs
from tuner_service.artifacts.s3 import S3Blobs
from tuner_service.db.engine import Database

Open = Callable[[str, Database], Blobs | None]
PLACES: Mapping[str, Open] = {
    "local": lambda place, database: None,
    "database": lambda place, database: DatabaseBlobs(database),
    "directory": lambda place, database: DirectoryBlobs(Path(place)),
    "s3": lambda place, database: S3Blobs(place, os.environ),
}


def open_artifacts(place: str, folder: Path, database: Database, *, limit_bytes: int) -> ArtifactCache:
    """The artifacts in ``folder``, in front of the shared place (``Settings.artifacts_place``).

    ArtifactsUnavailable, InvalidInput (of the place's own variables).
    """
    return ArtifactCache(folder, PLACES[_kind(place)](place, database), limit_bytes=limit_bytes)


def _kind(place: str) -> str:
    if place in ("local", "database"):
        return place
    return "s3" if place.startswith("s3://") else "directory"

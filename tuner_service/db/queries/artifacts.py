"""Artifacts that machines share, where the database is their store."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models_artifacts import SharedArtifact


def artifact_bytes(session: Session, name: str, *, limit_bytes: int) -> bytes | None:
    """The bytes under a name; None when there are none, or more than the limit: those are not even read."""
    wanted = select(SharedArtifact.data).where(
        SharedArtifact.name == name, func.length(SharedArtifact.data) <= limit_bytes
    )
    return session.execute(wanted).scalar_one_or_none()


def put_artifacts(session: Session, blobs: Mapping[str, bytes]) -> None:
    """Stores each under its name. The same bytes again write nothing; others take the place of what is there."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    stamp = now()
    # One order for all writers: two that put the same names never wait for each other in a circle.
    for name in sorted(blobs):
        row = {"name": name, "data": blobs[name], "size_bytes": len(blobs[name]), "created_at": stamp}
        new = insert(SharedArtifact).values(row)
        replaced = {column: getattr(new.excluded, column) for column in ("data", "size_bytes", "created_at")}
        session.execute(
            new.on_conflict_do_update(
                index_elements=[SharedArtifact.name],
                set_=replaced,
                where=SharedArtifact.data != new.excluded.data,
            )
        )

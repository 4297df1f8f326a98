"""Artifacts that machines share, where the database is their store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models_artifacts import SharedArtifact

_YOUNG_SECONDS = 3600.0
"""What was put so lately need not be made younger by writing it again."""


def artifact_bytes(session: Session, name: str, *, limit_bytes: int) -> bytes | None:
    """The bytes under a name; None when there are none, or more than the limit: those are not even read."""
    wanted = select(SharedArtifact.data).where(
        SharedArtifact.name == name, func.length(SharedArtifact.data) <= limit_bytes
    )
    return session.execute(wanted).scalar_one_or_none()


def put_artifacts(session: Session, blobs: Mapping[str, bytes]) -> None:
    """Stores each under its name, over what is there. The same bytes again write nothing, unless those are old."""
    if not blobs:
        return
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    stamp = now()
    # One order for all writers: two that put the same names never wait for each other in a circle.
    rows = [
        {"name": name, "data": blobs[name], "size_bytes": len(blobs[name]), "created_at": stamp}
        for name in sorted(blobs)
    ]
    new = insert(SharedArtifact).values(rows)
    replaced = {column: getattr(new.excluded, column) for column in ("data", "size_bytes", "created_at")}
    session.execute(
        new.on_conflict_do_update(
            index_elements=[SharedArtifact.name],
            set_=replaced,
            where=or_(SharedArtifact.data != new.excluded.data, SharedArtifact.created_at <= _before(_YOUNG_SECONDS)),
        )
    )


def resting_artifacts(session: Session, kind: str, *, seconds: float, after: str, limit: int) -> list[str]:
    """Names that begin with ``kind/`` and that nobody put for so long, in their order, ``after`` one."""
    query = select(SharedArtifact.name).where(
        SharedArtifact.name > max(after, f"{kind}/"),
        SharedArtifact.name < f"{kind}0",  # the character after the slash
        SharedArtifact.created_at <= _before(seconds),
    )
    return list(session.scalars(query.order_by(SharedArtifact.name).limit(limit)))


def remove_artifacts(session: Session, names: Sequence[str], *, seconds: float) -> int:
    """Removes those of these that nobody put for so long; how many."""
    old = SharedArtifact.name.in_(names) & (SharedArtifact.created_at <= _before(seconds))
    return len(session.scalars(delete(SharedArtifact).where(old).returning(SharedArtifact.name)).all())


def _before(seconds: float) -> str:
    moment = datetime.now(UTC) - timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

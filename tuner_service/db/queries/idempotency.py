"""Idempotency keys: which request a key came with, and what that request made."""

from __future__ import annotations

from sqlalchemy import insert
from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models import IdempotencyKey
from tuner_service.errors import IdempotencyMismatch


def made_before(session: Session, key: str | None, request_sha256: str) -> str | None:
    """Id of what the same request with this key made; None for a new key, and without one. IdempotencyMismatch when
    the key came with another request."""
    row = session.get(IdempotencyKey, key) if key is not None else None
    if row is None:
        return None
    if row.body_sha256 != request_sha256:
        raise IdempotencyMismatch(row.key, row.made_id)
    return row.made_id


def remember(session: Session, key: str | None, request_sha256: str, made_id: str) -> None:
    """Keeps what a request with this key made; without a key nothing."""
    if key is not None:
        row = {"key": key, "body_sha256": request_sha256, "made_id": made_id, "created_at": now()}
        session.execute(insert(IdempotencyKey), [row])

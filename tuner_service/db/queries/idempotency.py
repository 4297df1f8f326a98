"""Idempotency keys: which request a key came with, and what that request made."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models import IdempotencyKey
from tuner_service.db.upsert import insert
from tuner_service.errors import IdempotencyMismatch


def made_before(session: Session, key: str | None, request_sha256: str, *, making: str) -> str | None:
    """Id of what the same request with this key made before; None for a new key, which from then on stands for
    ``making``, and without one.

    Call it first in a transaction that makes something: whoever comes with the same key meanwhile waits until it has
    ended. IdempotencyMismatch when the key came with another request.
    """
    if key is None:
        return None
    row = {"key": key, "body_sha256": request_sha256, "made_id": making, "created_at": now()}
    added = insert(session, IdempotencyKey).values(row).on_conflict_do_nothing(index_elements=[IdempotencyKey.key])
    if session.scalars(added.returning(IdempotencyKey.key)).first() is not None:
        return None
    known = session.get_one(IdempotencyKey, key)
    if known.body_sha256 != request_sha256:
        raise IdempotencyMismatch(known.key, known.made_id)
    return known.made_id

"""Tables of what is frozen: catalogs, acceptances with their records, and where aliases point. See ``models``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tuner_service.db.models import ID, SEQUENCE, STAMP, Base, Document

SHA256 = String(64)


class Catalog(Base):
    """One frozen catalog. Never changed, never deleted: digests are promises."""

    __tablename__ = "catalogs"
    __table_args__ = (UniqueConstraint("digest"), Index(None, "role", "sequence"), {"sqlite_autoincrement": True})

    sequence: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(SHA256)
    role: Mapped[str] = mapped_column(String(16))
    other: Mapped[str] = mapped_column(SHA256)
    """The catalog in the other role that was frozen with it."""
    device: Mapped[str] = mapped_column(SHA256)
    device_kind: Mapped[str] = mapped_column(String(64))
    toolchain: Mapped[str] = mapped_column(SHA256)
    entries: Mapped[int]
    kernels: Mapped[list[Any]]
    jobs: Mapped[list[Any]]
    labels: Mapped[Document]
    body: Mapped[str] = mapped_column(Text)
    """Canonical JSON, digest included: the bytes that are served."""
    created_at: Mapped[str] = mapped_column(STAMP)


class Acceptance(Base):
    """One replay of a candidate catalog. ``attempt`` fences: what carries another one is refused."""

    __tablename__ = "acceptances"
    __table_args__ = (Index(None, "catalog", "id"), Index(None, "state", "id"))

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    catalog: Mapped[str] = mapped_column(SHA256)
    reference: Mapped[str] = mapped_column(SHA256)
    incumbent: Mapped[str | None] = mapped_column(SHA256)
    alias: Mapped[str] = mapped_column(String(64))
    rounds: Mapped[int]
    device_id: Mapped[str] = mapped_column(String(128))
    device: Mapped[Document]
    replay: Mapped[Document]
    """The Replay record: cases with their arms, as they were when it was asked for."""
    step: Mapped[Document | None]
    """The step that was handed out last."""
    attempt: Mapped[int]
    failures: Mapped[int]
    """Steps in a row that came to nothing on our side."""
    result: Mapped[Document | None]
    verdict: Mapped[str | None] = mapped_column(String(16))
    evidence: Mapped[str | None] = mapped_column(Text)
    evidence_sha256: Mapped[str | None] = mapped_column(SHA256)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(STAMP)
    started_at: Mapped[str | None] = mapped_column(STAMP)
    finished_at: Mapped[str | None] = mapped_column(STAMP)


class AcceptanceRecord(Base):
    """What one step of an acceptance recorded: a round's builds (case −1, arm ``build``), or one timed arm."""

    __tablename__ = "acceptance_records"
    __table_args__ = (
        UniqueConstraint("acceptance_id", "round", "case_index", "arm", "attempt", name="uq_acceptance_records_once"),
        {"sqlite_autoincrement": True},
    )

    sequence: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    acceptance_id: Mapped[str] = mapped_column(ID, ForeignKey("acceptances.id"))
    round: Mapped[int]
    case_index: Mapped[int]
    arm: Mapped[str] = mapped_column(String(8))
    attempt: Mapped[int]
    document: Mapped[Document]
    created_at: Mapped[str] = mapped_column(STAMP)


class AliasState(Base):
    """One state of an alias; the newest counts. States are only added, so that history cannot be lost."""

    __tablename__ = "alias_states"
    __table_args__ = (
        Index(None, "alias", "sequence"),
        Index(None, "acceptance_id"),
        {"sqlite_autoincrement": True},
    )

    sequence: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    alias: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(16))
    """``promote`` or ``rollback``."""
    entries: Mapped[list[Any]]
    """Manifest entries, newest promotion first."""
    acceptance_id: Mapped[str | None] = mapped_column(ID, ForeignKey("acceptances.id"))
    previous: Mapped[int | None] = mapped_column(SEQUENCE)
    """``sequence`` of the state that a rollback leads to."""
    promoted_at: Mapped[str] = mapped_column(STAMP)

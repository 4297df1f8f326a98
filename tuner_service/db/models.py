"""Tables. Portable types only (SQLite, PostgreSQL); timestamps are RFC 3339 UTC text; ids sort by time of creation.

Whole records are JSON; what is filtered, sorted or counted stands beside them as indexed scalars. Only ``db`` sees
this module.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Document = dict[str, Any]

ID = String(40)
STAMP = String(32)
SEQUENCE = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits in both databases. SQLite numbers rows by itself only in a column of exactly INTEGER."""
PRUNING = "pruning"
"""In the place of its state: a job whose removal has begun. Some of its rows are gone, so no list shows it any more."""


class Base(DeclarativeBase):
    """Root of the tables."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {Document: JSON(none_as_null=True), list[Any]: JSON(none_as_null=True)}  # noqa: RUF012


class Job(Base):
    """One request: some cases on one device."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "state", "id"),
        Index(None, "state", "finished_at"),
        Index(None, "device_kind", "id"),
        Index(None, "device_id", "id"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    request: Mapped[Document]
    device_id: Mapped[str] = mapped_column(String(128))
    device_kind: Mapped[str] = mapped_column(String(64))
    device: Mapped[Document]
    priority: Mapped[int] = mapped_column(server_default="0")
    """Larger goes first."""
    device_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    """How long its tasks have held the device, as far as they have reported."""
    stopped_by: Mapped[str | None] = mapped_column(String(16))
    """The limit that ended it before its search was complete."""
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(STAMP)
    started_at: Mapped[str | None] = mapped_column(STAMP)
    finished_at: Mapped[str | None] = mapped_column(STAMP)


class JobLabel(Base):
    """A label of a job, for filters."""

    __tablename__ = "job_labels"
    __table_args__ = (Index(None, "name", "value"),)

    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(256))


class Case(Base):
    """One kernel at one shape within a job."""

    __tablename__ = "cases"
    __table_args__ = (UniqueConstraint("job_id", "position"), Index(None, "kernel", "job_id"), Index(None, "settled"))

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id"))
    position: Mapped[int]
    kernel: Mapped[str] = mapped_column(String(128))
    document: Mapped[Document]
    program_digest: Mapped[str | None] = mapped_column(String(64))
    """Of the program with its params, as the job was submitted: what a name stands for may change later. None in rows
    that are older than this column, where the kernel had gone."""
    space: Mapped[Document]
    inert_knobs: Mapped[list[Any]]
    enumerated: Mapped[int]
    """Candidates of the space, known before any row exists."""
    measured: Mapped[int] = mapped_column(server_default="0")
    checked: Mapped[int] = mapped_column(server_default="0")
    rejected: Mapped[int] = mapped_column(server_default="0")
    """How many of those candidates have that outcome. Written with the outcomes, so that nobody counts trials."""
    opened: Mapped[bool]
    """Every candidate has its row."""
    revision: Mapped[int]
    """Grows with every change of the case's ledger, so that a reader knows whether its copy is current."""
    settled: Mapped[bool]
    result: Mapped[Document | None]
    """The CaseSettled record."""
    failures: Mapped[Document]
    """Step key → how often it failed on our side, and the last message."""


LISTED = (
    "id",
    "outcome",
    "stage",
    "reason",
    "width",
    "input",
    "is_default",
    "in_space",
    "median_seconds",
    "private_scalars",
    "score",
    "registers",
    "spill_bytes",
    "finished_at",
)


class Trial(Base):
    """One candidate of one case."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("case_id", "digest"),
        UniqueConstraint("case_id", "ordinal"),
        Index(None, "job_id", "in_space", "outcome"),
        Index(None, "case_id", "outcome", "median_seconds"),
        Index(None, "job_id", "median_seconds"),
        Index(None, "source_sha256"),
        # All that lists of trials filter and sort by: PostgreSQL reads only this. The longest inputs just fit.
        Index("ix_trials_listed", "job_id", "case_id", "ordinal", postgresql_include=LISTED),
        Index(
            "ix_trials_defaults",
            "job_id",
            "case_id",
            "id",
            postgresql_where=text("is_default"),
            sqlite_where=text("is_default"),
        ),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id"))
    case_id: Mapped[str] = mapped_column(ID, ForeignKey("cases.id"))
    ordinal: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))
    candidate: Mapped[Document]
    width: Mapped[int]
    input: Mapped[str] = mapped_column(Text)
    """The word, or ``tensor=word`` pairs: with the most and longest names that a program may have, 2,231 characters."""
    in_space: Mapped[bool]
    is_default: Mapped[bool]
    outcome: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str | None] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    detail: Mapped[Document | None]
    private_scalars: Mapped[int] = mapped_column(SEQUENCE)
    """What a rejected candidate would hold, too, which may be more than 32 bits count."""
    score: Mapped[float | None] = mapped_column(Double)
    plan: Mapped[Document | None]
    artifact: Mapped[Document | None]
    source_sha256: Mapped[str | None] = mapped_column(String(64))
    code: Mapped[Document | None]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    """Of ``code``, where the target has them."""
    build: Mapped[Document | None]
    """Seconds that lowering and compiling took."""
    checks: Mapped[Document | None]
    timing: Mapped[Document | None]
    median_seconds: Mapped[float | None] = mapped_column(Double)
    same_code_as: Mapped[str | None] = mapped_column(ID)
    overlapped: Mapped[bool | None]
    attempt: Mapped[int]
    """Fencing token: a result that carries another attempt is refused."""
    losses: Mapped[int]
    """How often a task that worked on it was lost on our side."""
    worker: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[str] = mapped_column(STAMP)
    finished_at: Mapped[str | None] = mapped_column(STAMP)


class Claim(Base):
    """A step handed to the engine. One whose task no longer exists is void."""

    __tablename__ = "claims"
    __table_args__ = (Index(None, "job_id"), Index(None, "case_id"))

    key: Mapped[str] = mapped_column(String(160), primary_key=True)
    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id"))
    case_id: Mapped[str] = mapped_column(ID, ForeignKey("cases.id"))
    step: Mapped[Document]
    attempts: Mapped[Document]
    """Trial id → the attempt that a result must carry."""
    created_at: Mapped[str] = mapped_column(STAMP)


class CaseEvent(Base):
    """What was recorded about a case as a whole: retimes, finals, baselines, fresh builds, revalidations."""

    __tablename__ = "case_events"
    __table_args__ = (UniqueConstraint("case_id", "kind", "name"),)

    id: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    case_id: Mapped[str] = mapped_column(ID, ForeignKey("cases.id"))
    kind: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(64))
    document: Mapped[Document]
    created_at: Mapped[str] = mapped_column(STAMP)


class JobEvent(Base):
    """The progress feed of a job; ``sequence`` is the event id that a reader resumes from."""

    __tablename__ = "job_events"
    __table_args__ = (Index(None, "job_id", "sequence"), {"sqlite_autoincrement": True})

    sequence: Mapped[int] = mapped_column(SEQUENCE, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id"))
    kind: Mapped[str] = mapped_column(String(32))
    document: Mapped[Document]
    created_at: Mapped[str] = mapped_column(STAMP)


class IdempotencyKey(Base):
    """What a request with an Idempotency-Key made: a job, an acceptance, a state of an alias."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index(None, "made_id"),)

    key: Mapped[str] = mapped_column(String(256), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    """Of the request: of a job's body, else of method, path and body."""
    made_id: Mapped[str] = mapped_column(ID)
    created_at: Mapped[str] = mapped_column(STAMP)


class Device(Base):
    """The last known DeviceSpec of a device, and when it was seen."""

    __tablename__ = "devices"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    kind: Mapped[str] = mapped_column(String(64))
    document: Mapped[Document]
    heartbeat_at: Mapped[str] = mapped_column(STAMP)
    quarantine_reason: Mapped[str | None] = mapped_column(Text)
    """Why nothing runs on it until somebody releases it."""
    quarantined_at: Mapped[str | None] = mapped_column(STAMP)

"""The JSON documents of retention; see ``schemas``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from tuner_service.api.schemas import Document


class PruneRequest(BaseModel):
    """Which jobs go."""

    older_than: str = Field(
        description="How long ago they ended at least: a number and `s`, `m`, `h`, `d` or `w`.", examples=["30d"]
    )
    states: list[Literal["succeeded", "failed", "cancelled"]] = Field(
        ["succeeded", "failed", "cancelled"], description="Only jobs that ended so."
    )
    labels: dict[str, str] = Field({}, description="Only jobs with all of these labels.")
    dry_run: bool = Field(False, description="Count what would go, and change nothing.")


class KeptJob(Document):
    """A job that is old enough and stays."""

    job_id: str
    reason: str
    referred_to_by: list[str] = Field(description="`catalog DIGEST`, `alias NAME`, `acceptance ID`.")


class PrunedDocument(Document):
    """What one call did."""

    dry_run: bool
    finished_before: str = Field(description="Jobs that ended before went.")
    removed: dict[str, int] = Field(
        description="Rows that this call removed, or would have: `jobs`, `cases`, `trials`, `events`, "
        "`idempotency_keys`, `queue_tasks`; once all jobs are gone `artifacts`, and, where machines share a store, "
        "`copies` of them in this process's data directory."
    )
    kept: list[KeptJob] = Field(description="Of these, at most a thousand.")
    kept_total: int
    complete: bool = Field(description="False: the time of one call was over; send the same request again.")


REFERENCED: tuple[type[BaseModel], ...] = (PruneRequest,)
"""Models that operations refer to by name, without FastAPI knowing."""

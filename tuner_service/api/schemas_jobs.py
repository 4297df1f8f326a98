"""What ``schemas`` has no room for: jobs as lists show them, and one case complete."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tuner_service.api.schemas import (
    CaseDocument,
    Document,
    JobCaseDocument,
    LimitsDocument,
    Page,
    Progress,
    State,
)


class WholeCaseDocument(JobCaseDocument):
    """One case of a job with what the job leaves out."""

    job_id: str
    case_index: int
    retimes: list[dict[str, Any]] = Field(description="Timings of the untuned default, spread through the search.")


class JobSummary(Document):
    """A job as lists show it: what it is about, and how far it is."""

    id: str
    state: State
    kernels: list[str] = Field(description="Of its cases, each once, in the order of the request.")
    case_count: int
    settled_count: int = Field(description="Cases that have their result.")
    first_case: CaseDocument
    device: dict[str, str] = Field(description="Id, kind, name, identity digest, toolchain fingerprint.")
    labels: dict[str, str]
    priority: int
    limits: LimitsDocument
    device_seconds: float
    stopped_by: Literal["device_seconds", "wall_seconds"] | None
    progress: Progress
    error: str | None
    waiting: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class JobPage(Page):
    """A page of jobs."""

    items: list[JobSummary]

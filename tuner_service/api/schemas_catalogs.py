"""The JSON documents of catalogs, aliases and acceptances as pydantic models; see ``schemas``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from tuner_service.api.schemas import CaseDocument, Document, EntryDocument, Page, State


class FreezeRequest(BaseModel):
    """Which jobs are frozen."""

    jobs: list[str] = Field(description="Ids of jobs that have succeeded, on one device with one toolchain.")
    cases: list[dict[str, Any]] = Field(
        [], description="Only cases that one of these describes: `kernel`, and `params`, `dims`, `dtypes` as given."
    )
    labels: dict[str, str] = Field({}, description="Free words to find the catalog by.")


class CatalogSummary(Document):
    """A catalog without its entries."""

    digest: str
    role: Literal["candidate", "reference"]
    reference: str | None = Field(description="Of a candidate: the reference catalog that was frozen with it.")
    candidate: str | None = Field(description="Of a reference: the candidate catalog that was frozen with it.")
    device: str = Field(description="Device identity digest.")
    device_kind: str
    toolchain: str = Field(description="Toolchain fingerprint.")
    kernels: list[str]
    entries: int
    jobs: list[str]
    labels: dict[str, str]
    created_at: str


class LeftOut(Document):
    """A case that was not frozen, and why."""

    job_id: str
    case_index: int
    kernel: str
    dims: dict[str, int]
    reason: str


class FrozenDocument(Document):
    """What freezing made."""

    candidate: CatalogSummary
    reference: CatalogSummary
    left_out: list[LeftOut]


class CatalogPage(Page):
    """A page of catalogs."""

    items: list[CatalogSummary]


class CatalogDocument(Document):
    """A catalog (docs/reference/catalog-format.md)."""

    digest: str
    schema_version: int
    role: Literal["candidate", "reference"]
    device: str
    toolchain: str
    kernels: list[dict[str, Any]]
    entries: list[EntryDocument]


class ManifestEntryDocument(Document):
    """The catalogs of one device with one toolchain."""

    device: str
    toolchain: str
    digest: str = Field(description="Of the candidate catalog.")
    reference: str | None


class ManifestDocument(Document):
    """Where an alias points."""

    alias: str
    schema_version: int
    entries: list[ManifestEntryDocument]
    history: list[dict[str, Any]]


class AliasPage(Page):
    """All aliases."""

    items: list[ManifestDocument]


class PromoteRequest(BaseModel):
    """What an alias shall name."""

    digest: str = Field(description="Digest of an accepted candidate catalog.")


class AcceptRequest(BaseModel):
    """How a catalog is replayed. The body may be left out."""

    rounds: int = Field(4, description="A multiple of four, at most 64.")
    alias: str = Field("prod", description="The catalog that this alias names now takes part as the incumbent.")


class ComparisonDocument(Document):
    """Ratios of an opponent's time to the candidate's, paired within rounds; above 1 the candidate is faster."""

    ratio_class: Literal["positive", "mixed", "negative", "control"] = Field(alias="class")
    ratio_median: float
    ratio_min: float = Field(description="Smallest ratio seen: not the bound of a confidence interval.")
    ratio_max: float


class AcceptanceCase(CaseDocument):
    """What the replay says of one case; metrics, spread, margin and state are null until it has ended."""

    index: int
    key_digest: str
    metrics: dict[str, dict[str, ComparisonDocument | None]] | None
    spread: float | None = Field(description="Largest relative difference of the candidate to itself (A/A).")
    margin: float | None
    state: Literal["ok", "worse", "inconclusive"] | None


class AcceptanceDocument(Document):
    """One replay of a candidate catalog against its reference, the default, the incumbent and torch."""

    id: str
    state: State
    catalog: str
    reference: str
    incumbent: str | None
    alias: str
    rounds: int
    device: dict[str, Any]
    progress: dict[str, int] = Field(description="`records` of `expected` are there.")
    cases: list[AcceptanceCase]
    deltas: list[dict[str, Any]] = Field(description="What differs from the frozen entries in a rebuild.")
    verdict: Literal["accepted", "rejected"] | None
    reasons: list[str]
    statements: list[str]
    evidence_sha256: str | None
    error: str | None
    waiting: str | None = Field(
        description="What an unfinished replay waits for on the service's side, such as its device."
    )
    created_at: str
    started_at: str | None
    finished_at: str | None


class AcceptancePage(Page):
    """A page of acceptances."""

    items: list[AcceptanceDocument]


REFERENCED: tuple[type[BaseModel], ...] = (FreezeRequest, PromoteRequest, AcceptRequest)
"""Models that operations refer to by name, without FastAPI knowing."""

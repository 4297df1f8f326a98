"""The JSON documents of the API as pydantic models: they document it in OpenAPI, and tests check answers against them.

Bodies are checked by ``jobs.request`` (every fault at once, with allowed values), not by these models. Units are in
the names; a field may be added, none changes its meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tuner_service.api.schemas_progress import InFlight

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Outcome = Literal["pending", "planned", "measured", "checked", "rejected", "not_run"]


class Document(BaseModel):
    """A document that may grow fields."""

    model_config = ConfigDict(extra="allow")


class CaseRequest(BaseModel):
    """One kernel at one shape. Either ``kernel`` or ``program``."""

    kernel: str | None = Field(None, description="Name of a built-in kernel (`GET /v1/kernels`).")
    program: dict[str, Any] | None = Field(None, description="A program document instead of a kernel name.")
    params: dict[str, float] = Field({}, description="Values of the program's params; missing ones take defaults.")
    dims: dict[str, int] = Field(description="Size of every dim of the program, in elements.")
    dtypes: dict[str, str] = Field({}, description="Tensor → dtype; missing ones take defaults.")


class LimitsRequest(BaseModel):
    """What a job may use at most. At a limit nothing more is begun, and what is left is ``not_run``."""

    device_seconds: float | None = Field(
        None, description="Seconds for which the job's tasks hold the device; null is unlimited.", gt=0
    )
    wall_seconds: float | None = Field(
        None, description="Seconds since the job began, whatever it waited for; null is unlimited.", gt=0
    )


class JobRequest(BaseModel):
    """What to tune, where, over which space, within which budget. The same body for jobs and plans."""

    cases: list[CaseRequest] = Field(description="At least one.")
    device: str = Field(
        description="A device kind (`cpu`), a device id (`GET /v1/devices`), or a compile-only one (`cuda-sm_90`): "
        "candidates are then built, inspected and simulated, nothing is timed, and nothing wins."
    )
    space: dict[str, list[Any]] = Field(
        {}, description="Knob → list of values; a missing knob takes the device's default list (`GET /v1/kernels`)."
    )
    private_budget_scalars: int | None = Field(
        64, description="Most private scalars that one lane may own; null is unlimited."
    )
    spills_allowed: bool = Field(
        True,
        description="False, on CUDA devices alone: code that spills registers is rejected (`resources`, `spills`).",
    )
    protocol: str = Field("search", description="How candidates are timed.")
    cache_context: Literal["warm", "cold"] = Field(
        "warm",
        description="`warm`: the same buffers at each call. `cold`, on GPUs alone: buffers that rotate through more "
        "than the last-level cache. It is part of a winner's key.",
    )
    baselines: list[str] = Field(
        ["torch_eager"],
        description="`torch_eager`, `torch_compile`, `inductor_core`, or none. A compile-only device has none.",
    )
    labels: dict[str, str] = Field({}, description="Free words to find the job by.")
    priority: int = Field(
        0, description="Larger goes first, on devices and in compiling; equal ones take turns.", ge=-100, le=100
    )
    limits: LimitsRequest = Field(LimitsRequest(), description="What the job may use at most.")


class LookupRequest(CaseRequest):
    """What winner is asked for, and where: a case as in a job, and the device whose winner it is."""

    device: str | None = Field(None, description="Device id, kind or identity digest; left out: the attached one.")
    toolchain: str | None = Field(
        None, description="Toolchain fingerprint, or `any` said out loud; left out: the attached device's."
    )
    catalog: str | None = Field(
        None, description="A frozen catalog to look in, by alias or digest; left out: winners of all jobs."
    )
    cache_context: Literal["warm", "cold"] | None = Field(None, description="How it was measured; left out: warm.")


class CaseDocument(Document):
    """A case with every param, dim and dtype resolved."""

    kernel: str
    params: dict[str, float]
    dims: dict[str, int]
    dtypes: dict[str, str]


class MappingDocument(Document):
    """The target's mapping knobs: how a packet of lanes is laid over rows and columns."""


class CandidateDocument(Document):
    """One point of the joint space."""

    width: int = Field(description="Lanes of a packet: SIMD lanes, or GPU threads per row.")
    vector: int
    unroll: int
    partials: int
    input: str | dict[str, str] = Field(description="`reload` or `cache`, for all inputs or by tensor.")
    fusion: str
    materialize: str
    algorithm: str = Field("written", description="The algorithm, where it is not the program as written.")
    mapping: MappingDocument


class PlanDocument(Document):
    """What the planner knows before any code exists."""

    private_scalars: int = Field(description="Scalars of private tiles owned by the busiest lane.")
    allocated_scalars: int = Field(description="The same, padded to whole vectors.")
    score: float | None = Field(description="Cost score; it ranks, it never prunes.")
    demand: dict[str, Any] = Field(description="Scalar and collective rounds and bytes, per program and per lane.")


class TrialDocument(Document):
    """One candidate of one case and everything that is known about it."""

    id: str
    job_id: str
    case: CaseDocument
    candidate: CandidateDocument
    in_space: bool = Field(description="False for the untuned default when the space does not hold it.")
    is_default: bool
    outcome: Outcome
    stage: str | None = Field(description="Where it was rejected.")
    reason: str | None = Field(description="Why, as one stable word.")
    detail: dict[str, Any] | None = Field(description="The numbers behind the rejection.")
    same_code_as: str | None = Field(
        description="The trial whose timing it inherits (whose checks, where nothing is timed): equal machine code; "
        "of a rejected trial, the first one that was rejected with this code."
    )
    overlapped: bool | None = Field(description="Compiling went on while it was timed.")
    plan: PlanDocument | None
    code: dict[str, Any] | None = Field(description="Facts read from the machine code.")
    timing: dict[str, Any] | None = Field(description="Phase → raw samples and median, seconds per call.")
    checks: dict[str, Any] | None = Field(description="Correctness record against the float64 oracle.")
    attempt: int
    worker: str | None
    created_at: str
    finished_at: str | None


class PlannedDocument(Document):
    """A candidate of a dry run: planned, or rejected with the numbers."""

    case: CaseDocument
    candidate: CandidateDocument
    in_space: bool
    is_default: bool
    outcome: Literal["planned", "rejected"]
    stage: str | None
    reason: str | None
    detail: dict[str, Any] | None
    plan: PlanDocument | None


class PlanCaseDocument(Document):
    """Counts of one case of a dry run, over the candidates of the space."""

    kernel: str
    params: dict[str, float]
    dims: dict[str, int]
    dtypes: dict[str, str]
    enumerated: int
    rejected: int
    planned: int
    reasons: dict[str, int] = Field(description="Rejections by reason.")
    inert_knobs: list[str]


class LimitsDocument(Document):
    """What a job may use at most; null is unlimited."""

    device_seconds: float | None
    wall_seconds: float | None


class Progress(Document):
    """Counts over the candidates of the space; enumerated = rejected + measured + checked + pending + not_run."""

    enumerated: int
    rejected: int
    measured: int
    checked: int = Field(description="On a compile-only device: built, simulated and right; nothing was timed.")
    pending: int
    not_run: int


class JobCaseDocument(Document):
    """The state or result of one case."""

    kernel: str
    dims: dict[str, int]
    dtypes: dict[str, str]
    winner: TrialDocument | None
    reference: TrialDocument | None
    default: TrialDocument | None
    tie_set: list[str]
    inert_knobs: list[str]
    noise_floor: float | None
    regret: float | None
    baselines: dict[str, Any]
    finals: dict[str, Any] | None = Field(description="The interleaved rounds that decided, raw, with their medians.")
    untimed: str | None = Field(
        description="Why nothing was timed and nothing can win: the device is compile-only. Null on all others."
    )


class JobDocument(Document):
    """A tuning job."""

    id: str
    state: State
    request: dict[str, Any] = Field(description="The request with every default resolved.")
    device: dict[str, Any]
    priority: int = Field(description="Larger goes first; equal ones take turns.")
    limits: LimitsDocument
    device_seconds: float = Field(description="For how long its tasks have held the device, as far as they reported.")
    stopped_by: Literal["device_seconds", "wall_seconds"] | None = Field(
        description="The limit that ended it before its search was complete; what was left is `not_run`."
    )
    progress: Progress
    cases: list[JobCaseDocument]
    error: str | None = Field(description="Why the job failed: a fault of the service, never of a candidate.")
    waiting: str | None = Field(
        description="What an unfinished job waits for on the service's side, such as its device or a locked database."
    )
    in_flight: list[InFlight] | None = Field(None, description="What its tasks do, or wait to do. Not in lists.")
    created_at: str
    started_at: str | None
    finished_at: str | None


class SourceDocument(Document):
    """Everything needed to rebuild a trial's kernel by hand."""

    source_sha256: str
    tilelang_text: str
    c_text: str
    header_name: str
    header_text: str
    build_command: list[str]
    files: dict[str, str]


class DeviceDocument(Document):
    """One attached device, or the reason it cannot be used."""

    id: str
    kind: str
    name: str
    identity: dict[str, Any]
    identity_digest: str
    toolchain: dict[str, Any]
    toolchain_fingerprint: str
    available: bool
    timed: bool = Field(description="False: compile-only; candidates are built, inspected and simulated, never timed.")
    architecture: str | None = Field(description="What code is generated for, where the target has several.")
    limits: dict[str, int] = Field(description="Documented limits of the hardware, units in the names.")
    reason: str | None
    heartbeat_at: str | None
    quarantine: dict[str, str] | None = Field(
        description="`reason` and `since` where the device is used no more until it is released."
    )


class KernelDocument(Document):
    """A kernel that has a name."""

    name: str
    summary: str
    package: str | None = Field(description="The installed package that it comes from; null: built in.")
    params: dict[str, Any]
    dims: list[str]
    program: dict[str, Any]


class EntryDocument(Document):
    """A winner: its key, the complete candidate, plan and code facts, and where the evidence is."""

    schema_version: int
    key: dict[str, Any]
    kernel: str
    params: dict[str, float]
    candidate: CandidateDocument
    plan: dict[str, Any]
    code: dict[str, Any]
    metric: str
    protocol: dict[str, Any]
    median_seconds: float
    samples_sha256: str
    tie_set: list[str]
    job_id: str
    trial_id: str


class Page(Document):
    """One page of a list."""

    next: str | None = Field(description="Give it as `cursor` to get the next page; null on the last one.")
    total: int = Field(description="Items that match, over all pages.")


class TrialPage(Page):
    """A page of trials."""

    items: list[TrialDocument]


class KernelPage(Page):
    """All kernels."""

    items: list[KernelDocument]


class DevicePage(Page):
    """All devices."""

    items: list[DeviceDocument]
    probing: bool = Field(description="Devices are being looked for or at; a later answer may say more.")


class PlanPage(Page):
    """A page of a dry run."""

    items: list[PlannedDocument]
    cases: list[PlanCaseDocument]


class Readiness(Document):
    """Whether the service can take jobs."""

    ready: bool
    database: Literal["ok", "locked", "full", "unavailable", "outdated"]
    reason: str | None = Field(description="What is wrong with the database.")
    devices: Literal["probing", "probed"]
    packages: list[str] = Field(description="What installed packages with kernels failed at; they are left out.")
    engine: Literal["embedded", "postgres"]
    leads: bool = Field(description="Whether this process is the one that advances jobs.")
    workers: int | None = Field(
        description="Workers that were heard of lately; null where this process compiles and measures by itself, or "
        "the database does not answer."
    )


class Health(Document):
    """The process answers."""

    status: Literal["ok"]
    version: str


class FieldError(BaseModel):
    """One fault of a request."""

    field: str = Field(description="JSON pointer into the body, `/query/NAME` or `/header/NAME`.")
    value: Any = Field(description="What stood there (shortened when long).")
    message: str
    allowed: Any = Field(description="What is accepted.")


class Problem(Document):
    """RFC 9457 problem details."""

    type: str = Field(description="Address of the page about this kind of problem.")
    title: str
    status: int
    detail: str
    instance: str = Field(description="The request id, as in the log and in `X-Request-ID`.")
    errors: list[FieldError]


REFERENCED: tuple[type[BaseModel], ...] = (JobRequest, LookupRequest, Problem)
"""Models that operations refer to by name, without FastAPI knowing."""

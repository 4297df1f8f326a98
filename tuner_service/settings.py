"""Every setting of the service: an environment variable with the prefix ``TUNER_``, with its unit in its name."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from search.device.probe import COMPILE_ONLY_DEVICES
from search.errors import InvalidInput, Problem
from tuner_service.database_url import DATABASE_URLS, database_url_fault, without_password
from tuner_service.loopback import LOOPBACK_NAMES, is_loopback

ENVIRONMENT_PREFIX = "TUNER_"
ARTIFACT_PLACES = "database, local, /a/directory, s3://BUCKET or s3://BUCKET/PREFIX"
_S3_PLACE = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*/?")
DATABASE_FILE = "tuner.sqlite3"
"""In the data directory, unless a URL names another database."""
DAY_SECONDS = 86_400.0


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/tuner``, or ``~/.local/share/tuner``."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tuner"


class Settings(BaseSettings):
    """Read from the environment (an empty variable counts as none); explicit keyword arguments win over it.

    Make one with :func:`load_settings` where the values are a user's.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, allow_inf_nan=False
    )

    host: str = Field(
        "127.0.0.1",
        description="Address to bind. Only loopback is allowed while there are no API keys.",
        json_schema_extra={"allowed": f"{', '.join(LOOPBACK_NAMES)}, or another loopback address"},
    )
    port: int = Field(8000, ge=0, le=65535, description="TCP port to bind; 0 picks a free one.")
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Directory of the database, the artifact store and the lock. One service at a time.",
    )
    database_url: str | None = Field(
        None,
        description="URL of the database: SQLite's, or PostgreSQL's. Empty: SQLite in the data directory "
        "(tuner.sqlite3).",
        json_schema_extra={"allowed": DATABASE_URLS},
    )
    engine: Literal["embedded", "postgres"] = Field(
        "embedded",
        description="embedded: this process compiles and measures. postgres: tuner worker processes do, on any host "
        "that reaches the PostgreSQL database; see docs/how-to/many-machines.md.",
    )
    worker_lost_seconds: float = Field(
        30.0,
        ge=5,
        le=3600,
        description="A worker that was silent for so long is lost, in seconds: what it ran is tried again, and its "
        "devices are free for others. The service and all workers must have the same.",
    )
    drain_seconds: float = Field(
        30.0,
        ge=0,
        le=DAY_SECONDS,
        description="Time that a worker which is told to stop gives to what it runs, in seconds; the rest is handed "
        "back, and charged to nobody.",
    )
    artifacts: str | None = Field(
        None,
        description="Where sources and compiled libraries are kept for all machines of a deployment: database, a "
        "directory that all of them mount, s3://BUCKET/PREFIX, or local (this machine's data directory alone). "
        "Empty: database with the engine postgres, else local.",
        json_schema_extra={"allowed": ARTIFACT_PLACES},
    )
    max_artifact_bytes: int = Field(
        256 * 2**20,
        ge=2**20,
        description="Largest source or compiled library that is kept for other machines, in bytes.",
    )
    database_connections: int = Field(
        10,
        ge=2,
        le=1000,
        description="Most connections of one process to a PostgreSQL; those of all processes share the server's.",
    )
    request_database_wait_seconds: float = Field(
        3.0,
        ge=0,
        le=DAY_SECONDS,
        description="How long a request waits for a locked database before it answers 503, in seconds. "
        "What was measured waits longer.",
    )
    max_body_bytes: int = Field(
        2**20, ge=1024, description="Largest request body accepted, in bytes; a larger one answers 413."
    )
    max_cases_per_job: int = Field(64, ge=1, description="Most cases in one job or plan.")
    max_candidates_per_case: int = Field(20_000, ge=1, le=20_000, description="Most candidates in one case's space.")
    max_dim: int = Field(2**24, ge=1, description="Largest size of one dimension, in elements.")
    max_tensor_bytes: int = Field(2 * 2**30, ge=1, description="Most bytes that all tensors of one case may take.")
    max_case_points: int = Field(
        2**34, ge=1, description="Most points that all statements of one case visit: rows, columns and loop trips."
    )
    max_program_statements: int = Field(
        64, ge=1, le=1024, description="Most statements of one program, those in loops included."
    )
    max_program_tensors: int = Field(32, ge=1, le=256, description="Most tensors of one program.")
    max_loop_depth: int = Field(4, ge=0, le=4, description="How deep a program's loops may nest; 0 allows none.")
    max_expression_characters: int = Field(
        4_000, ge=1, le=4_000, description="Longest text of one expression of a program, in characters."
    )
    max_expression_depth: int = Field(
        64, ge=1, le=64, description="Most levels of one expression; a sum of n terms has n."
    )
    max_expression_nodes: int = Field(500, ge=1, le=500, description="Most operands and operations of one expression.")
    compile_slots: int = Field(
        default_factory=lambda: max(1, min(8, (os.cpu_count() or 2) // 2)),
        ge=1,
        le=256,
        description="Compile tasks that run at the same time.",
    )
    child_timeout_seconds: float = Field(
        60.0,
        gt=0,
        le=DAY_SECONDS,
        description="Time that one candidate may take in a child before it is killed, in seconds.",
    )
    compile_only_devices: str = Field(
        ",".join(COMPILE_ONLY_DEVICES),
        description="CUDA architectures, with commas between them, or none, that candidates are built, inspected and "
        "simulated for without a GPU; nothing is timed on them.",
        json_schema_extra={"allowed": f"none, or some of {', '.join(COMPILE_ONLY_DEVICES)}, with commas between them"},
    )
    advance_period_seconds: float = Field(
        2.0,
        gt=0,
        le=DAY_SECONDS,
        description="How often unfinished jobs are looked at even if nothing was reported, in seconds.",
    )
    stream_poll_seconds: float = Field(
        0.25, gt=0, le=DAY_SECONDS, description="How often an event stream looks for new events, in seconds."
    )
    shutdown_timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=DAY_SECONDS,
        description="Time that open requests and running children get on a clean stop, in seconds.",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        description="Address on which a worker answers Prometheus, where it has a port for that.",
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="TCP port on which a worker answers Prometheus; 0: none. The service answers at /metrics.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="DEBUG, INFO, WARNING or ERROR; JSON on stderr."
    )

    @field_validator("host")
    @classmethod
    def _only_loopback(cls, host: str) -> str:
        if not is_loopback(host):
            raise ValueError(
                "the service has no API keys yet, so it binds loopback addresses only; "
                "reach it from another machine through an SSH tunnel"
            )
        return host

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("compile_only_devices")
    @classmethod
    def _known_devices(cls, names: str) -> str:
        given = [] if names.strip() == "none" else [name.strip() for name in names.split(",")]
        if unknown := [name for name in given if name not in COMPILE_ONLY_DEVICES]:
            raise ValueError(f"there is no compile-only device {unknown[0]!r}")
        return ",".join(dict.fromkeys(given)) or "none"

    @field_validator("artifacts")
    @classmethod
    def _usable_place(cls, place: str | None, given: ValidationInfo) -> str | None:
        if place == "local" and given.data.get("engine") == "postgres":
            raise ValueError("processes of the postgres engine exchange what they build, and local prevents that")
        if not place or place in ("database", "local") or _S3_PLACE.fullmatch(place):
            return place or None
        if "://" in place or not place.startswith("/"):
            raise ValueError("not a place for artifacts")
        return place

    @field_validator("database_url")
    @classmethod
    def _usable_url(cls, url: str | None) -> str | None:
        if url and (fault := database_url_fault(url)):
            raise ValueError(fault)
        return url or None

    @model_validator(mode="after")
    def _engine_has_its_database(self) -> Settings:
        if self.engine == "postgres" and not (self.database_url or "").startswith("postgresql"):
            raise ValueError("the postgres engine needs TUNER_DATABASE_URL=postgresql://USER:PASSWORD@HOST/DATABASE")
        return self

    @property
    def compile_only_names(self) -> tuple[str, ...]:
        """``compile_only_devices``, one by one."""
        return () if self.compile_only_devices == "none" else tuple(self.compile_only_devices.split(","))

    @property
    def artifacts_place(self) -> str:
        """``artifacts``, or what stands for it where it is empty."""
        return self.artifacts or ("database" if self.engine == "postgres" else "local")

    @property
    def resolved_database_url(self) -> str:
        """``database_url``, or SQLite in the data directory."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / DATABASE_FILE}"

    @property
    def upgrade_command(self) -> str:
        """What to type, with the same environment, to bring the database to this version's schema."""
        return (
            "tuner db upgrade"
            if self.database_url
            else f"tuner db upgrade --data-dir {shlex.quote(str(self.data_dir))}"
        )


@dataclass(frozen=True, kw_only=True)
class SettingDescription:
    """One setting, for people: its variable, its value now, its default and what it does."""

    name: str
    variable: str
    value: Any
    default: Any
    description: str

    def document(self) -> dict[str, Any]:
        """JSON form; paths become strings."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()}


CHILDREN_READ: tuple[tuple[str, str, str], ...] = (
    ("TUNER_CC", "gcc", "C compiler, a name on the PATH or a path. Read from the environment by what compiles."),
    (
        "TUNER_NVCC",
        "nvcc",
        "CUDA compiler, a name on the PATH or a path; 'none' takes NVRTC from PyPI, as where there is no nvcc.",
    ),
    (
        "TUNER_CXX",
        "g++",
        "C++ compiler of the simulation that checks CUDA candidates, a name on the PATH or a path.",
    ),
    (
        "TUNER_LOCK_DIR",
        str(Path(tempfile.gettempdir()) / "tuner-device-locks"),
        "Directory of the host-wide device locks. All that measure on this host must name the same.",
    ),
)
"""(variable, default, description) of what is read below the service, from its environment and nowhere else."""


def describe(settings: Settings) -> tuple[SettingDescription, ...]:
    """Every setting in declared order, with the values that ``settings`` holds; then those of ``CHILDREN_READ``."""
    return tuple(
        SettingDescription(
            name=name,
            variable=(ENVIRONMENT_PREFIX + name).upper(),
            value=_shown(getattr(settings, name)),
            default=field.get_default(call_default_factory=True, validated_data={}),
            description=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ) + tuple(
        SettingDescription(
            name=variable.removeprefix(ENVIRONMENT_PREFIX).lower(),
            variable=variable,
            value=os.environ.get(variable) or default,
            default=default,
            description=description,
        )
        for variable, default, description in CHILDREN_READ
    )


def load_settings(**given: Any) -> Settings:
    """The settings from the environment and the given values. InvalidInput names each wrong variable."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise InvalidInput([_problem(fault) for fault in error.errors(include_url=False)]) from None


def _problem(fault: Any) -> Problem:
    name = str(fault["loc"][0]) if fault["loc"] else "engine"
    value = _shown(fault["input"] if fault["loc"] else fault["input"].get(name))
    return Problem(
        field=(ENVIRONMENT_PREFIX + name).upper(),
        value=value if isinstance(value, str | int | float | bool) else str(value),
        message=fault["msg"].removeprefix("Value error, "),
        allowed=_allowed(name),
    )


def _allowed(name: str) -> str:
    """What a setting takes, from its own declaration."""
    schema = Settings.model_json_schema()["properties"].get(name, {})
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return ", ".join(schema["enum"])
    words = {"integer": "a whole number", "number": "a number", "string": "a text"}.get(
        schema.get("type", ""), "a value"
    )
    bounds = (("exclusiveMinimum", ">"), ("minimum", ">="), ("maximum", "<="))
    limits = [f"{sign} {schema[bound]:g}" for bound, sign in bounds if bound in schema]
    return ", ".join([words, *limits])


def _shown(value: Any) -> Any:
    return without_password(value) if isinstance(value, str) else value

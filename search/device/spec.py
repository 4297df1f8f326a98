"""A DeviceSpec: what a device is and can do. Data; ``probe.py`` fills it from the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from catalogs import sha256_hex
from search.errors import InvalidInput, Problem

DTYPES_BY_TARGET: dict[str, tuple[str, ...]] = {
    "cpu": ("float32", "float16", "bfloat16", "int32"),
    "cuda": ("float32", "float16", "bfloat16", "int32"),
}
"""Tensor dtypes that each target's lowering accepts today."""

_NOT_OF_COMPILING = frozenset(("driver_version", "timing_sources_sha256"))
CacheContext = Literal["warm", "cold"]
CACHE_CONTEXTS: tuple[CacheContext, ...] = ("warm", "cold")
"""*warm*: the same buffers at each call; *cold*: buffers that rotate through more than the last-level cache."""


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One attached device (or the reason it cannot be used)."""

    id: str
    """Stable on this machine: ``cpu:<first 12 hex digits of the identity digest>``, or ``cuda-sm_90``."""
    kind: str
    """``cpu``, ``nvidia-…`` or ``cuda-sm_…``: what a job may name instead of an id."""
    target: Literal["cpu", "cuda"]
    name: str
    """For people: the model name."""
    identity: Mapping[str, Any]
    """Model, ISA, caches…: everything that must be equal for a winner to be served (``catalogs.device``)."""
    identity_digest: str
    toolchain: Mapping[str, Any]
    """Versions and sha256 of compiler, TileLang, flags, our lowering and timing sources."""
    toolchain_fingerprint: str
    """sha256 (hex) of the canonical JSON of ``toolchain``."""
    available: bool
    reason: str | None = None
    """Why it is unavailable."""
    timed: bool = True
    """False for a compile-only device: candidates are built, inspected and simulated there, and nothing has a time."""
    architecture: str | None = None
    """What code is generated for (``sm_90``), where the target has several."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Documented limits of the hardware, units in the names, where the target has them."""
    max_width: int = 1024
    measure_cpus: tuple[int, ...] = ()
    """CPU ids the measuring child is pinned to."""
    compile_cpus: tuple[int, ...] = ()
    """CPU ids the compile pool may use while the device measures."""
    uuid: str | None = None
    """The driver's name for one GPU of the world; None where nothing of that kind is attached."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """What a GPU said of itself when it was probed (driver, clocks, power, others on it); no part of its identity."""

    @property
    def untimed(self) -> str | None:
        """See :func:`why_untimed`."""
        return why_untimed(vars(self))

    @property
    def default_baselines(self) -> tuple[str, ...]:
        """What a job that names no baselines is compared with: nothing where nothing is timed."""
        return ("torch_eager",) if self.timed else ()

    @property
    def compile_key(self) -> str:
        """Equal where the same source is compiled to the same artifact: any such machine may build for this device.

        Neither the driver nor what takes times has a say in it. A CPU's compiler looks at the machine that it runs on.
        """
        tools = {name: part for name, part in self.toolchain.items() if name not in _NOT_OF_COMPILING}
        machine = self.identity_digest if self.target == "cpu" else self.architecture
        return f"{self.target}-{sha256_hex({'machine': machine, 'toolchain': tools})[:16]}"

    @property
    def cache_contexts(self) -> tuple[CacheContext, ...]:
        """What a job may ask for: a CPU's timing loop reuses its buffers, and compile-only devices time nothing."""
        return CACHE_CONTEXTS if self.target == "cuda" and self.timed else ("warm",)

    @property
    def tells_spills(self) -> bool:
        """Whether the code facts of this device know spills, so that they can be forbidden."""
        return self.target == "cuda"

    def document(self) -> dict[str, Any]:
        """JSON form, as in ``GET /v1/devices``."""
        out = dict(vars(self))
        out["measure_cpus"], out["compile_cpus"] = list(self.measure_cpus), list(self.compile_cpus)
        out["identity"], out["toolchain"], out["limits"] = dict(self.identity), dict(self.toolchain), dict(self.limits)
        out["card"] = dict(self.card)
        return out

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> DeviceSpec:
        """Inverse of :meth:`document`; keys it does not know are ignored."""
        fields = {k: document[k] for k in cls.__dataclass_fields__ if k in document}
        fields["measure_cpus"] = tuple(fields.get("measure_cpus", ()))
        fields["compile_cpus"] = tuple(fields.get("compile_cpus", ()))
        return cls(**fields)


def why_untimed(device: Mapping[str, Any]) -> str | None:
    """Why no trial of a job on this device has a time, and no candidate can win; None where candidates are timed.

    ``device``: a DeviceSpec's document, which may have been stored before there were compile-only devices.
    """
    if device.get("timed", True):
        return None
    return f"{device['id']} is compile-only: candidates are built, inspected and checked in a simulation, never timed"


def check_cache_context(cache_context: str, device: DeviceSpec) -> None:
    """InvalidInput for a context in which the device does not measure."""
    if cache_context in device.cache_contexts:
        return
    message = f"{device.id} has no such cache context"
    if cache_context in CACHE_CONTEXTS:
        message = device.untimed or f"{device.id} measures warm alone: its timing loop calls on the same buffers"
    allowed = list(device.cache_contexts)
    raise InvalidInput([Problem(field="/cache_context", value=cache_context, message=message, allowed=allowed)])


def check_spills_allowed(spills_allowed: bool, device: DeviceSpec) -> None:
    """InvalidInput where spills are forbidden and the device's code facts do not tell them."""
    if not spills_allowed and not device.tells_spills:
        message = f"the code facts of {device.id} do not tell spills, so they cannot be forbidden"
        raise InvalidInput([Problem(field="/spills_allowed", value=False, message=message, allowed=[True])])

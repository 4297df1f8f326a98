"""What is measured and what comes back. Data only: no numpy, no processes.

Phases are separate, state what they include and exclude, and are never subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from search.device.spec import CacheContext
from search.lowering.contract import Artifact
from search.outcome import Rejected

Phase = Literal["device_batch", "device_single", "e2e_batch", "e2e_single"]
BASELINES = ("torch_eager", "torch_compile", "inductor_core")
"""Baselines that a job may ask for; ``inductor_core`` is what torch.compile compiled, without its dispatch."""

PHASES: dict[Phase, str] = {
    "device_batch": "device time of a batch of calls / calls: a native loop calling the compiled kernel, one thread, "
    "pinned; no Python inside; inputs resident; compilation and transfers outside. Selects.",
    "device_single": "one native call timed alone; the clock's own cost is included",
    "e2e_batch": "host wall time of a batch of calls from Python / calls: dispatch included",
    "e2e_single": "host wall time of one call from Python: dispatch included",
}

OTHER_PHASES: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase != "device_batch")
"""What is sampled beside ``device_batch`` where that was sampled in rounds."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How one phase is sampled."""

    name: str
    warmup_seconds: float
    samples: int
    batch_seconds: float
    """Target duration of one sample of a batch phase; a batch has at least one call."""
    sittings: int = 1
    """Fresh processes over which interleaved rounds are spread: a divisor of ``samples``. Where memory and code lie
    differs from process to process and shifts a kernel by more than its samples within one process show."""

    def document(self) -> dict[str, Any]:
        """JSON form; one sitting, the rule, is left out."""
        return {name: value for name, value in vars(self).items() if (name, value) != ("sittings", 1)}


# Six sittings are the fewest that a 95 % sign-test interval can be built from. With nine it runs from the second to the
# eighth: one that a neighbour disturbed decides nothing.
PROTOCOLS: dict[str, Protocol] = {
    "search": Protocol(name="search", warmup_seconds=0.100, samples=5, batch_seconds=0.010),
    "finals": Protocol(name="finals", warmup_seconds=0.020, samples=18, batch_seconds=0.010, sittings=9),
    "acceptance": Protocol(name="acceptance", warmup_seconds=0.200, samples=9, batch_seconds=0.030),
}


@dataclass(frozen=True, kw_only=True)
class PhaseTiming:
    """Raw samples of one phase, in the order taken; seconds per call."""

    samples_seconds: tuple[float, ...]
    median_seconds: float
    calls_per_sample: int
    conditions: Mapping[str, Any] | None = None
    """On a GPU: its clocks, heat and throttling while the samples were taken, how often they were taken again, and what
    still deviates (``measuring.gpu.conditions``)."""
    cache_context: CacheContext | None = None
    """``cold`` where buffers rotated through more than the last-level cache; None: warm."""

    def document(self) -> dict[str, Any]:
        """JSON form; conditions, and a cache context that is not warm, only where there are any."""
        out = {**vars(self), "samples_seconds": list(self.samples_seconds)}
        return {name: value for name, value in out.items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PhaseTiming:
        """Inverse of :meth:`document`."""
        return cls(
            samples_seconds=tuple(document["samples_seconds"]),
            median_seconds=document["median_seconds"],
            calls_per_sample=document["calls_per_sample"],
            conditions=document.get("conditions"),
            cache_context=document.get("cache_context"),
        )


Timing: TypeAlias = Mapping[Phase, PhaseTiming]


def timing_document(timing: Timing) -> dict[str, Any]:
    """JSON form of a timing: every phase named, null where it was not measured."""
    return {phase: timing[phase].document() if phase in timing else None for phase in PHASES}


def timing_from_document(document: Mapping[str, Any]) -> Timing:
    """Inverse of :func:`timing_document`."""
    return {phase: PhaseTiming.from_document(document[phase]) for phase in PHASES if document.get(phase)}


@dataclass(frozen=True, kw_only=True)
class InputCheck:
    """One input set's comparison with the float64 oracle, over all outputs. Errors are null if not finite."""

    name: Literal["normal", "large_offset", "edge_rows"]
    elements_checked: int
    guard_elements_checked: int
    input_sha256: str
    tolerance: str
    """The rule in words."""
    max_abs_error: float | None
    max_rel_error: float | None
    max_ulp_error: float | None
    max_tolerance: float | None
    """The largest absolute tolerance that any element was given."""
    failures: int = 0
    """Elements beyond tolerance, unwritten, or with NaN in the wrong place."""
    first_failure: Mapping[str, Any] | None = None
    """{"tensor", "index", "got", "expected", "tolerance", "kind"} of the first failing element."""
    patterns: tuple[str, ...] = ()
    """Edge patterns that some row followed, as ``tensor:pattern`` (edge_rows only)."""


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Correctness record of one artifact; ``passed`` needs a non-zero number of elements."""

    passed: bool
    inputs: tuple[InputCheck, ...]
    guards_intact: bool
    inputs_unchanged: bool
    simulated_rows: int | None = None
    """Rows of the case that a simulation ran; None when the machine code itself was run, on all of them."""

    def document(self) -> dict[str, Any]:
        """JSON form, as in trial.checks; without ``simulated_rows`` where nothing was simulated."""
        fields = {**vars(self), "inputs": [{**vars(i), "patterns": list(i.patterns)} for i in self.inputs]}
        if self.simulated_rows is None:
            del fields["simulated_rows"]
        return fields

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Checks:
        """Inverse of :meth:`document`."""
        fields = dict(document)
        inputs = (InputCheck(**{**i, "patterns": tuple(i.get("patterns", ()))}) for i in fields.pop("inputs"))
        return cls(inputs=tuple(inputs), **fields)


@dataclass(frozen=True, kw_only=True)
class MeasureItem:
    """One compiled candidate to run. ``id`` is the caller's (a trial id)."""

    id: str
    artifact: Artifact


@dataclass(frozen=True, kw_only=True)
class MeasureResult:
    """What came of one item: checks and timing, or a rejection (runtime, timeout, correctness)."""

    id: str
    checks: Checks | None = None
    timing: Timing = field(default_factory=dict)
    rejection: Rejected | None = None
    started_at: str = ""
    finished_at: str = ""


@dataclass(frozen=True, kw_only=True)
class FinalsSamples:
    """Interleaved rounds: ``samples_seconds[id][r]`` was taken in round r; the order rotates by one each round.

    The rounds are those of ``sittings`` fresh processes one after the other, equally many of each.
    """

    order: tuple[str, ...]
    protocol: str
    samples_seconds: Mapping[str, tuple[float, ...]]
    extra_phases: Mapping[str, Timing]
    """All four phases for the ids asked for."""
    rejections: Mapping[str, Rejected] = field(default_factory=dict)
    started_at: str = ""
    finished_at: str = ""
    sittings: int = 1
    conditions: tuple[Mapping[str, Any], ...] = ()
    """On a GPU: those of each round (``measuring.gpu.conditions``)."""


@dataclass(frozen=True, kw_only=True)
class BaselineSamples:
    """A baseline timed side by side with our kernel: paired rounds, alternating between two pinned children.

    ``device_batch`` of a baseline is the host wall of a Python loop of calls: torch has no native entry to loop over,
    so it includes dispatch. ``kernel_seconds[r]`` is our kernel's device_batch sample of the same round.
    """

    name: str
    implementation: str
    """The torch call as evaluated, for people."""
    allocation: str
    """``preallocated (out=)`` or ``allocates its result inside the timed call``."""
    versions: Mapping[str, str]
    timing: Timing
    checks: Checks | None
    kernel_id: str | None
    kernel_seconds: tuple[float, ...] = ()
    error: str | None = None
    """Why there is no timing (the baseline failed or is not expressible)."""
    threads: int = 1

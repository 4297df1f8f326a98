"""Records as long as a real run's, for steps that are acted on paper: all samples with all digits, whole checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from search.events import BaselineMeasured, FinalsMeasured
from search.lowering.contract import CodeFacts
from search.measuring.checks import TOLERANCE
from search.measuring.protocol import PROTOCOLS, Checks, InputCheck, PhaseTiming

ROUNDS = PROTOCOLS["finals"].samples
NUMERICS = {
    "accumulation": "float32",
    "algorithm": "as written",
    "contraction": "fma allowed",
    "denormals": "kept unless a function says otherwise",
    "division": "as written, correctly rounded",
    "exp": "degree-6 polynomial (Cephes), about 1 ulp, zero below -87.33",
    "max reduction": "16 lanes x 1 partials, then a binary tree",
    "sum reduction": "16 lanes x 1 partials, then a binary tree",
}
"""As a softmax on this CPU says them."""


def samples(seconds: float, number: int) -> tuple[float, ...]:
    """So many samples, a few parts in a thousand apart, none of them a round number."""
    return tuple(seconds * (1 + 0.003 * math.sin(1 + index)) for index in range(number))


def phase(seconds: float, number: int = 5) -> PhaseTiming:
    """A phase of so many samples whose median is ``seconds``."""
    return PhaseTiming(samples_seconds=samples(seconds, number), median_seconds=seconds, calls_per_sample=465)


def checks() -> Checks:
    """What passing on three inputs leaves."""
    return Checks(
        passed=True,
        inputs=tuple(
            InputCheck(
                name=name,
                elements_checked=16_384,
                guard_elements_checked=2_048,
                input_sha256=f"{number:064x}",
                tolerance=TOLERANCE,
                max_abs_error=7.450580596923828e-09,
                max_rel_error=3.9543095350463534e-07,
                max_ulp_error=6.0,
                max_tolerance=4.172325134277344e-07,
            )
            for number, name in enumerate(("normal", "large_offset", "edge_rows"))
        ),
        guards_intact=True,
        inputs_unchanged=True,
    )


def long_recording_tools(paper: ModuleType) -> type[Any]:
    """The PaperTools of that module, acting the same and recording at full length."""
    paper.passed_checks, paper.phase = checks, phase  # type: ignore[attr-defined]
    acting: type[Any] = paper.PaperTools

    class LongRecording(acting):  # type: ignore[misc]
        def facts(self, ordinal: int) -> CodeFacts:
            return replace(super().facts(ordinal), tilelang_sha256=f"{ordinal:064x}", numerics=NUMERICS)

        def perform(self, *step: Any, **how: Any) -> Iterator[Any]:
            for event in super().perform(*step, **how):
                yield _longer(event)

    return LongRecording


def _longer(event: Any) -> Any:
    if isinstance(event, FinalsMeasured):
        taken = event.samples.samples_seconds
        longer = {trial: samples(of_trial[0], ROUNDS) for trial, of_trial in taken.items()}
        return replace(event, samples=replace(event.samples, samples_seconds=longer))
    if isinstance(event, BaselineMeasured):
        phases = {word: phase(1e-3, ROUNDS) for word in ("device_batch", "device_single", "e2e_batch", "e2e_single")}
        ours = samples(1e-4, ROUNDS) if event.samples.kernel_seconds else ()
        return replace(event, samples=replace(event.samples, timing=phases, kernel_seconds=ours))
    return event

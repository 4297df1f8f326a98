"""The cases of ``gpu_check``: what was planned, built and measured of each, and its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.lowering.contract import BuildRequest, BuildResult
from search.measuring.protocol import BaselineSamples, FinalsSamples, MeasureItem, MeasureResult
from search.planning.plan import PlannedCandidate, plan_case
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space
from search.stats.compare import paired_ratios
from search.stats.summary import median

Build = Callable[[Sequence[BuildRequest]], Iterable[BuildResult]]


@dataclass(kw_only=True)
class Checked:
    """One case as it went."""

    case: Case
    planned: list[PlannedCandidate]
    built: dict[str, BuildResult] = field(default_factory=dict)
    results: dict[str, MeasureResult] = field(default_factory=dict)
    finals: FinalsSamples | None = None
    baselines: dict[str, BaselineSamples] = field(default_factory=dict)
    copy_seconds: float | None = None
    cold: dict[str, float] = field(default_factory=dict)
    cold_baselines: dict[str, BaselineSamples] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """By part: why it is missing, or not all there."""

    @property
    def id(self) -> str:
        return f"{self.case.kernel}-{self.case.dims['rows']}x{self.case.dims['cols']}"

    def trial(self, place: int) -> str:
        return f"{self.id}-{place}"

    def candidate(self, trial: str) -> PlannedCandidate:
        return self.planned[int(trial.rsplit("-", 1)[1])]

    def ranked(self, *, reload_only: bool = False) -> list[str]:
        """Trials of the space that were measured, fastest first."""
        found = [
            trial
            for trial, result in self.results.items()
            if result.rejection is None
            and self.candidate(trial).in_space
            and not (reload_only and self.candidate(trial).candidate.input != "reload")
        ]
        return sorted(found, key=lambda trial: self.results[trial].timing["device_batch"].median_seconds)

    @property
    def default(self) -> str | None:
        """The untuned default, if it was measured."""
        found = [trial for trial in self.results if self.candidate(trial).is_default]
        return next((trial for trial in found if self.results[trial].rejection is None), None)

    @property
    def moved_bytes(self) -> int:
        """Bytes that any kernel must at least read and write."""
        program = self.case.program
        return sum(self.case.element_bytes(t.name) * math.prod(self.case.shape(t)) for t in program.tensors)

    def missing(self, parts: Sequence[str]) -> dict[str, str]:
        """Of these parts: why each that is not there is not."""
        return {name: self.errors.get(name, "not begun") for name in parts if name not in self.done}

    def admitted(self) -> Iterator[tuple[str, PlannedCandidate]]:
        """What planning did not reject."""
        for place, planned in enumerate(self.planned):
            if planned.rejection is None:
                yield self.trial(place), planned

    def item(self, trial: str) -> MeasureItem:
        artifact = self.built[trial].artifact
        assert artifact is not None
        return MeasureItem(id=trial, artifact=artifact)

    @property
    def best(self) -> str:
        """The leader of the finals. Incomplete without any."""
        found = leader(self, lambda trial: True)
        if found is None:
            raise Incomplete("there is no best candidate")
        return found


class Incomplete(Exception):  # noqa: N818 - recorded, and the next part follows
    """A part brought less than it should; the message says what is missing."""


def plan(shapes: Sequence[str], kernels: Sequence[str], space: Mapping[str, Sequence[Any]]) -> Iterator[Checked]:
    """The cases with their candidates, largest shape first."""
    for shape in shapes:
        rows, cols = (int(part) for part in shape.split("x"))
        for kernel in kernels:
            case = resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}})
            resolved = resolve_space({name: list(values) for name, values in space.items()}, case, "cuda")
            yield Checked(case=case, planned=list(plan_case(case, resolved)))


def requests_of(checked: Sequence[Checked]) -> list[BuildRequest]:
    """What planning admits."""
    return [
        BuildRequest(id=trial, case=one.case.document(), candidate=planned.candidate.document())
        for one in checked
        for trial, planned in one.admitted()
    ]


def build_all(checked: Sequence[Checked], build: Build) -> None:
    """Compile what planning admits, in one go."""
    requests = requests_of(checked)
    owner = {one.trial(place): one for one in checked for place in range(len(one.planned))}
    for result in build(requests):
        owner[result.id].built[result.id] = result


def leader(one: Checked, admits: Callable[[str], bool]) -> str | None:
    """The fastest finalist among those admitted, by its median of the interleaved rounds."""
    if one.finals is None:
        return None
    found = {t: s for t, s in one.finals.samples_seconds.items() if one.candidate(t).in_space and admits(t)}
    return min(found, key=lambda trial: median(found[trial])) if found else None


def report(one: Checked, parts: Sequence[str]) -> dict[str, Any]:
    """JSON of a case: counts, who is best, ratios with the range that was seen, samples."""
    best = leader(one, lambda trial: True)
    reload_ = leader(one, lambda trial: one.candidate(trial).candidate.input == "reload")
    samples = dict(one.finals.samples_seconds) if one.finals is not None else {}
    outcomes = {trial: _outcome(one, trial) for trial in map(one.trial, range(len(one.planned)))}
    measured = [trial for trial, outcome in outcomes.items() if outcome == "measured"]
    return {
        "kernel": one.case.kernel,
        "dims": dict(one.case.dims),
        "enumerated": len(outcomes),
        "checked": sum(1 for result in one.results.values() if result.checks is not None and result.checks.passed),
        "measured": len(measured),
        "rejected": {trial: outcome for trial, outcome in outcomes.items() if outcome != "measured"},
        "candidates": {trial: one.candidate(trial).candidate.document() for trial in measured},
        "search": {trial: one.results[trial].timing["device_batch"].document() for trial in measured},
        "finals": {trial: list(taken) for trial, taken in samples.items()},
        "best": best,
        "best_seconds": median(samples[best]) if best else None,
        "best_over": {
            "reload": _ratio(samples, best, reload_),
            "default": _ratio(samples, best, one.default),
            **{name: _against(samples_) for name, samples_ in one.baselines.items()},
        },
        "best_reload": reload_,
        "default": one.default,
        "baselines": {name: _baseline(samples_) for name, samples_ in one.baselines.items()},
        "moved_bytes": one.moved_bytes,
        "copy_fraction": {
            "warm": _fraction(one.copy_seconds, median(samples[best]) if best else None),
            "cold": _fraction(one.cold.get("copy_seconds"), one.cold.get("best_seconds")),
        },
        "cold": one.cold,
        "cold_best_over": {name: _against(samples_) for name, samples_ in one.cold_baselines.items()},
        "cold_baselines": {name: _baseline(samples_) for name, samples_ in one.cold_baselines.items()},
        "deviating_rounds": [c["deviates"] for c in (one.finals.conditions if one.finals else ()) if c["deviates"]],
        "parts": list(one.done),
        "missing": one.missing(parts),
    }


def _outcome(one: Checked, trial: str) -> Any:
    planned, built, result = one.candidate(trial), one.built.get(trial), one.results.get(trial)
    for rejection in (planned.rejection, built and built.rejection, result and result.rejection):
        if rejection is not None:
            return rejection.document()
    return "measured" if result is not None else "not_run"


def _ratio(samples: Mapping[str, Sequence[float]], best: str | None, other: str | None) -> dict[str, Any] | None:
    """How many times as long the other takes, paired within rounds."""
    if best is None or other not in samples:
        return None
    paired = paired_ratios(samples[other], samples[best])
    return {"median": paired.median, "min": paired.low, "max": paired.high}


def _against(samples: BaselineSamples) -> dict[str, Any] | None:
    theirs = samples.timing["device_batch"].samples_seconds if samples.timing else ()
    if not theirs or not samples.kernel_seconds:
        return None
    paired = paired_ratios(theirs, samples.kernel_seconds)
    return {"median": paired.median, "min": paired.low, "max": paired.high}


def _baseline(samples: BaselineSamples) -> dict[str, Any]:
    return {
        "implementation": samples.implementation,
        "allocation": samples.allocation,
        "versions": dict(samples.versions),
        "timing": {phase: timing.document() for phase, timing in samples.timing.items()},
        "kernel_seconds": list(samples.kernel_seconds),
        "error": samples.error,
    }


def _fraction(copy_seconds: float | None, kernel_seconds: float | None) -> float | None:
    """Of the copy's bandwidth: both move as many bytes."""
    return copy_seconds / kernel_seconds if copy_seconds and kernel_seconds else None

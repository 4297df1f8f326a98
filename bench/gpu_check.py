"""Everything that needs a GPU, in one run of a few minutes on a borrowed one; writes one JSON.

    python bench/gpu_check.py --output gpu.json

The seed's 12 cases: every candidate of a joint space is checked in full and timed; the best, the best reload one and
the untuned default are timed again interleaved; torch eager and torch.compile beside the best; what fraction of the
bandwidth of a copy of as many bytes it reaches. Cases that the time does not suffice for are named, not hidden.

Without a GPU it says so and exits 3. ``--dry-run`` goes the same way with a driver that runs nothing and small shapes;
its JSON says ``"measured": false``, and its times mean nothing. ``--prebuild`` compiles for an architecture and stops:
what it leaves in ``--work-dir`` may be carried to the machine that has the GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from search.device.spec import DeviceSpec
from search.errors import TunerError
from search.lowering.contract import BuildRequest, BuildResult
from search.measuring.benches import CacheContext, Children
from search.measuring.gpu.attached import attached_gpus
from search.measuring.gpu.rehearsed import rehearsed
from search.measuring.protocol import BaselineSamples, FinalsSamples, MeasureItem, MeasureResult
from search.measuring.run import Measurer
from search.planning.plan import PlannedCandidate, plan_case
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space
from search.stats.compare import paired_ratios
from search.stats.summary import median

NO_GPU = 3
"""Exit status."""
KERNELS = ("rms_norm", "softmax", "layer_norm")
SHAPES = ("1024x4096", "128x2048", "128x8193", "23x769")
DRY_SHAPES = ("23x769",)
SPACE: Mapping[str, Sequence[Any]] = {
    "width": [32, 128, 256, 512, 1024],
    "input": ["reload", "cache"],
    "materialize": ["private"],
    "vector": [1, 4],
    "rows_per_block": [1],
}
BASELINES = ("torch_eager", "torch_compile")
FINALISTS = 3
ENOUGH = 40
"""Candidates that are to be checked at least."""
SECONDS = 330.0
"""No case is begun later than this."""
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
    error: str | None = None

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

    def item(self, trial: str) -> MeasureItem:
        artifact = self.built[trial].artifact
        assert artifact is not None
        return MeasureItem(id=trial, artifact=artifact)


def plan(shapes: Sequence[str], kernels: Sequence[str], space: Mapping[str, Sequence[Any]]) -> Iterator[Checked]:
    """The cases with their candidates, largest shape first."""
    for shape in shapes:
        rows, cols = (int(part) for part in shape.split("x"))
        for kernel in kernels:
            case = resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}})
            resolved = resolve_space({name: list(values) for name, values in space.items()}, case, "cuda")
            yield Checked(case=case, planned=list(plan_case(case, resolved)))


def build_all(checked: Sequence[Checked], build: Build) -> None:
    """Compile what planning admits, in one go."""
    requests = [
        BuildRequest(id=one.trial(place), case=one.case.document(), candidate=planned.candidate.document())
        for one in checked
        for place, planned in enumerate(one.planned)
        if planned.rejection is None
    ]
    owner = {one.trial(place): one for one in checked for place in range(len(one.planned))}
    for result in build(requests):
        owner[result.id].built[result.id] = result


def measure_warm(one: Checked, warm: Measurer, baselines: Sequence[str]) -> None:
    """Check and time every candidate, then the finals, the baselines and the copy."""
    trials = [trial for trial, result in one.built.items() if result.artifact is not None]
    for result in warm.search(one.case, [one.item(trial) for trial in trials]):
        one.results[result.id] = result
    ranked, reloads = one.ranked(), one.ranked(reload_only=True)
    if not ranked:
        return
    wanted = dict.fromkeys([*ranked[:FINALISTS], *reloads[:FINALISTS], *filter(None, [one.default])])
    one.finals = warm.finals(one.case, [one.item(trial) for trial in wanted], protocol="acceptance")
    best = leader(one, lambda trial: True) or ranked[0]
    for name in baselines:
        one.baselines[name] = warm.baseline(one.case, name, against=one.item(best), protocol="search")
    one.copy_seconds = warm.copy(one.case, one.moved_bytes // 2).median_seconds


def measure_cold(one: Checked, cold: Measurer) -> None:
    """The best and the copy once more, with buffers that rotate through more than the cache."""
    best = leader(one, lambda trial: True)
    if best is None:
        return
    again = cold.replay(one.case, one.item(best), phases=("device_batch",), protocol="search")
    if again.rejection is None:
        one.cold = {
            "best_seconds": again.timing["device_batch"].median_seconds,
            "copy_seconds": cold.copy(one.case, one.moved_bytes // 2).median_seconds,
        }


def leader(one: Checked, admits: Callable[[str], bool]) -> str | None:
    """The fastest finalist among those admitted, by its median of the interleaved rounds."""
    if one.finals is None:
        return None
    found = {t: s for t, s in one.finals.samples_seconds.items() if one.candidate(t).in_space and admits(t)}
    return min(found, key=lambda trial: median(found[trial])) if found else None


def report(one: Checked) -> dict[str, Any]:
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
        "error": one.error,
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


def run(
    checked: Sequence[Checked],
    device: DeviceSpec,
    work_dir: Path,
    *,
    build: Build,
    children: tuple[Children, Children] | None = None,
    baselines: Sequence[str] = BASELINES,
    seconds: float = SECONDS,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Build and measure the cases; the report. ``children``: warm and cold ones, for a rehearsal."""
    started = time.monotonic()
    build_all(checked, build)
    built = time.monotonic() - started
    say(f"built {sum(1 for one in checked for r in one.built.values() if r.artifact)} candidates in {built:.0f} s")
    passes: tuple[tuple[CacheContext, Callable[[Checked, Measurer], None]], ...] = (
        ("warm", lambda one, measurer: measure_warm(one, measurer, baselines)),
        ("cold", measure_cold),
    )
    for place, (context, measure) in enumerate(passes):
        own = children[place] if children is not None else None
        with Measurer(device, work_dir / "measuring", children=own, cache_context=context) as measurer:
            for one in checked:
                if time.monotonic() - started > seconds:
                    one.error = one.error or f"{context}: not begun, {seconds:g} s were over"
                    continue
                try:
                    measure(one, measurer)
                except TunerError as error:
                    one.error = f"{context}: {type(error).__name__}: {error}"
                say(f"{context} {one.id}: {_line(report(one))}")
    cases = [report(one) for one in checked]
    return {
        "measured": children is None,
        "device": device.document(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "build_seconds": built,
        "seconds": time.monotonic() - started,
        "checked": sum(case["checked"] for case in cases),
        "complete": all(case["error"] is None and case["best"] is not None for case in cases)
        and sum(case["checked"] for case in cases) >= ENOUGH,
        "cases": cases,
    }


def _line(case: Mapping[str, Any]) -> str:
    if case["error"]:
        return str(case["error"])
    ratios = {name: f"{one['median']:.3f}" if one else "none" for name, one in case["best_over"].items()}
    fraction = {name: f"{one:.2f}" if one else "none" for name, one in case["copy_fraction"].items()}
    return f"{case['checked']} checked, times as long as the best: {ratios}; of a copy's bandwidth: {fraction}"


def builder_of(architecture: str, work_dir: Path) -> Build:
    """The compiler of this machine."""
    from search.lowering.builder import Builder

    def build(requests: Sequence[BuildRequest]) -> Iterator[BuildResult]:
        builder = Builder(work_dir / "artifacts", target="cuda", architecture=architecture)
        try:
            yield from builder.build(requests, timeout_seconds=60.0, cancelled=lambda: False)
        finally:
            builder.close()

    return build


def rehearsal_device(architecture: str) -> DeviceSpec:
    """What a dry run takes for a device. It is none."""
    return DeviceSpec(
        id="rehearsal",
        kind="rehearsal",
        target="cuda",
        name="no device: nothing is measured",
        identity={},
        identity_digest="",
        toolchain={},
        toolchain_fingerprint="",
        available=True,
        architecture=architecture,
        uuid="rehearsal",
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--work-dir", type=Path, default=Path(".data/gpu-check"))
    parser.add_argument("--shapes", help=f"default: {','.join(SHAPES)}; dry: {','.join(DRY_SHAPES)}")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no case is begun later than this")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, with a driver that runs nothing")
    parser.add_argument("--prebuild", metavar="ARCHITECTURE", help="only compile, sm_90 say; needs no GPU")
    given = parser.parse_args(words)
    given.work_dir.mkdir(parents=True, exist_ok=True)
    shapes = (given.shapes or ",".join(DRY_SHAPES if given.dry_run else SHAPES)).split(",")
    device, children = rehearsal_device("sm_90"), (rehearsed(), rehearsed(cache_context="cold"))
    if not given.dry_run and given.prebuild is None:
        device = next((one for one in attached_gpus() if one.available), attached_gpus()[0])
        if not device.available:
            print(f"no GPU to measure on: {device.reason}", file=sys.stderr)
            return NO_GPU
        print(f"{device.name} ({device.id}), driver {device.card['driver_version']}")
    checked = list(plan(shapes, given.kernels.split(","), SPACE))
    if given.prebuild is not None:
        build_all(checked, builder_of(given.prebuild, given.work_dir))
        print(f"built {sum(1 for one in checked for r in one.built.values() if r.artifact)} in {given.work_dir}")
        return 0
    found = run(
        checked,
        device,
        given.work_dir,
        build=builder_of(str(device.architecture), given.work_dir),
        children=children if given.dry_run else None,
        seconds=given.seconds,
    )
    given.output.write_text(json.dumps(found, indent=1))
    if given.dry_run:
        print("dry run: nothing was measured, no time in the output means anything")
    print(f"{found['checked']} candidates checked in {found['seconds']:.0f} s: {given.output}")
    return 0 if found["complete"] or given.dry_run else 1


if __name__ == "__main__":
    sys.exit(main())

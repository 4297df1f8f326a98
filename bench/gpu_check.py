"""Everything that needs a GPU, in one run of a few minutes on a borrowed one; writes one JSON, after every part.

    python bench/gpu_check.py --output gpu.json

The seed's 12 cases. Warm: every candidate of a joint space is checked in full and timed; the best, the best reload one
and the untuned default are timed again interleaved; torch eager beside the best; a copy of as many bytes. Then cold
(buffers rotate through more than the cache): the best, the copy, torch eager. Last torch.compile, which takes longest.

What fails is recorded and the rest goes on; what the time does not suffice for, or others on the device prevent, is
named. ``complete`` says that nothing is missing. Without a GPU it says so and exits 3. ``--dry-run`` goes the same way
with a driver that runs nothing and small shapes; its JSON says ``"measured": false``, and its times mean nothing.
``--prebuild`` compiles for an architecture and stops: what it leaves in ``--work-dir`` may be carried to the machine
that has the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.gpu_cases import Build, Checked, build_all, plan, report, requests_of
from bench.gpu_parts import PARTS, ROUNDS, Measure
from bench.gpu_prebuilt import carried, keep_built
from search.device.spec import DeviceSpec
from search.errors import DeviceUnavailable
from search.lowering.contract import BuildRequest, BuildResult
from search.lowering.cuda.architectures import ARCHITECTURES
from search.lowering.cuda.toolchain import check as why_not
from search.measuring.benches import CacheContext, Children
from search.measuring.gpu.attached import attached_gpus
from search.measuring.gpu.rehearsed import rehearsed
from search.measuring.oracle import load_oracle
from search.measuring.run import Measurer
from search.program.case import Case

NO_GPU, NO_COMPILER = 3, 4
"""Exit statuses."""
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
ENOUGH = 40
"""Candidates that are to be checked at least."""
SECONDS = 330.0
"""No part is begun later than this after the start; what runs then is given ``GRACE_SECONDS`` more."""
GRACE_SECONDS = 15.0
PATIENCE_SECONDS = 15.0
"""How long one part waits for others on the device to go."""
CHILD_SECONDS = 45.0
"""How long a child may be silent: 60 candidates are not checked in one silence."""
LOST_IN_A_ROW = 3
"""So many parts without a device, and no more are begun."""


class Budget:
    """The time that is left, from the start of the script."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = time.monotonic()

    @property
    def spent_seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def over(self) -> bool:
        """Whether nothing may be begun any more."""
        return self.spent_seconds > self.seconds

    def stop(self) -> bool:
        """Whether what runs must end."""
        return self.spent_seconds > self.seconds + GRACE_SECONDS


def run(
    checked: Sequence[Checked],
    device: DeviceSpec,
    work_dir: Path,
    *,
    build: Build,
    children: tuple[Children, Children] | None = None,
    rounds: Sequence[tuple[CacheContext, Mapping[str, Measure]]] | None = None,
    budget: Budget | None = None,
    say: Callable[[str], None] = print,
    keep: Callable[[Mapping[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Build and measure the cases; the report, which ``keep`` gets after every part too. ``children``: warm and cold
    ones, for a rehearsal."""
    budget = budget or Budget(SECONDS)
    failed: dict[str, str] = {}
    built = time.monotonic()
    try:
        build_all(checked, build)
    except Exception as error:
        failed["build"] = _words(error)
        say(f"build: {failed['build']}")
    built_seconds = time.monotonic() - built
    say(f"built {sum(1 for one in checked for r in one.built.values() if r.artifact)} in {built_seconds:.0f} s")

    def found(*, ended: bool) -> dict[str, Any]:
        cases = [report(one, PARTS) for one in checked]
        enough = sum(case["checked"] for case in cases) >= ENOUGH
        return {
            "measured": children is None,
            "device": device.document(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "build_seconds": built_seconds,
            "seconds": budget.spent_seconds,
            "checked": sum(case["checked"] for case in cases),
            "ended": ended,
            "failed": failed,
            "missing": [f"{one.id}: {name}: {why}" for one in checked for name, why in one.missing(PARTS).items()],
            "complete": ended and enough and not failed and not any(one.missing(PARTS) for one in checked),
            "cases": cases,
        }

    keep(found(ended=False))
    lost = 0
    for context, measures in rounds or ROUNDS:
        if budget.over or lost >= LOST_IN_A_ROW:
            break
        own = children[context == "cold"] if children is not None else None
        try:
            with Measurer(
                device,
                work_dir / "measuring",
                children=own,
                cache_context=context,
                child_timeout_seconds=CHILD_SECONDS,
                prepare_timeout_seconds=CHILD_SECONDS,
                contended_patience_seconds=PATIENCE_SECONDS,
            ) as measurer:
                for one in checked:
                    for name, measure in measures.items():
                        if budget.over or lost >= LOST_IN_A_ROW:
                            break
                        lost = lost + 1 if _part(one, name, measure, measurer, budget) else 0
                        say(f"{one.id} {name}: {one.errors.get(name, 'done')}")
                        keep(found(ended=False))
                    say(f"{one.id}: {_line(report(one, PARTS))}")
        except Exception as error:  # a Measurer that does not open, or close
            failed[context] = _words(error)
    ended = found(ended=True)
    keep(ended)
    return ended


def _part(one: Checked, name: str, measure: Measure, measurer: Measurer, budget: Budget) -> bool:
    """Do a part and note what came of it; whether there was no device."""
    try:
        measure(one, measurer, budget.stop)
    except Exception as error:  # whatever it is, the next part may succeed
        one.errors[name] = _words(error)
        return isinstance(error, DeviceUnavailable)
    one.done.append(name)
    return False


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _line(case: Mapping[str, Any]) -> str:
    ratios = {name: f"{one['median']:.3f}" if one else "none" for name, one in case["best_over"].items()}
    fraction = {name: f"{one:.2f}" if one else "none" for name, one in case["copy_fraction"].items()}
    return f"{case['checked']} checked, times as long as the best: {ratios}; of a copy's bandwidth: {fraction}"


def builder_of(architecture: str, work_dir: Path, stop: Callable[[], bool] = lambda: False) -> Build:
    """The compiler of this machine."""
    from search.lowering.builder import Builder

    def build(requests: Sequence[BuildRequest]) -> Iterator[BuildResult]:
        builder = Builder(work_dir / "artifacts", target="cuda", architecture=architecture)
        try:
            yield from builder.build(requests, timeout_seconds=60.0, cancelled=stop)
        finally:
            builder.close()

    return build


def beside_oracles(checked: Sequence[Checked], work_dir: Path, build: Build) -> Build:
    """The compiler, and beside it what results are compared with is computed: that takes seconds a case."""

    def both(requests: Sequence[BuildRequest]) -> Iterator[BuildResult]:
        workers = max(1, min(4, len(os.sched_getaffinity(0)) - 2))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            for one in checked:  # one that fails is computed by the child that needs it, which says why
                pool.submit(_prepare_oracle, one.case, work_dir / "measuring")
            yield from build(requests)

    return both


def _prepare_oracle(case: Case, folder: Path) -> None:
    load_oracle(case, folder)


def write(path: Path, found: Mapping[str, Any]) -> None:
    """The report, whole or as it was: whatever ends this script, what it has measured so far is there."""
    whole = path.with_name(f".{path.name}.new")
    whole.write_text(json.dumps(found, indent=1, allow_nan=False))
    whole.replace(path)


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
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no part is begun later than this")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing, with a driver that runs nothing")
    parser.add_argument("--prebuild", choices=list(ARCHITECTURES), help="only compile, for this; needs no GPU")
    given = parser.parse_args(words)
    budget = Budget(given.seconds)
    given.work_dir.mkdir(parents=True, exist_ok=True)
    shapes = (given.shapes or ",".join(DRY_SHAPES if given.dry_run else SHAPES)).split(",")
    device, children = rehearsal_device("sm_90"), (rehearsed(), rehearsed(cache_context="cold"))
    if not given.dry_run and given.prebuild is None:
        attached = attached_gpus()
        device = next((one for one in attached if one.available), attached[0])
        if not device.available:
            print(f"no GPU to measure on: {device.reason}", file=sys.stderr)
            return NO_GPU
        print(f"{device.name} ({device.id}), driver {device.card['driver_version']}")
    checked = list(plan(shapes, given.kernels.split(","), SPACE))
    if given.prebuild is not None:
        if (reason := why_not(given.prebuild)) is not None:
            print(f"nothing can be compiled: {reason}", file=sys.stderr)
            return NO_COMPILER
        build_all(checked, builder_of(given.prebuild, given.work_dir))
        results = {trial: result for one in checked for trial, result in one.built.items()}
        kept = keep_built(given.work_dir, given.prebuild, requests_of(checked), results)
        print(f"built {sum(1 for result in results.values() if result.artifact)} of {len(results)}: {kept}")
        return 0
    architecture = str(device.architecture)
    compiler = builder_of(architecture, given.work_dir, budget.stop)
    found = run(
        checked,
        device,
        given.work_dir,
        build=beside_oracles(checked, given.work_dir, carried(given.work_dir, architecture, compiler)),
        children=children if given.dry_run else None,
        budget=budget,
        keep=lambda found: write(given.output, found),
    )
    if given.dry_run:
        print("dry run: nothing was measured, no time in the output means anything")
    for line in found["missing"]:
        print(f"missing: {line}", file=sys.stderr)
    print(f"{found['checked']} candidates checked in {found['seconds']:.0f} s: {given.output}")
    return 0 if found["complete"] or given.dry_run else 1


if __name__ == "__main__":
    sys.exit(main())

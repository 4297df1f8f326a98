"""Load/reduction fusion against separate snapshots: the seed's 15 rows under its two CPU mappings at W = 8.

    python bench/fusion_matrix.py                                  everything, about five minutes
    python bench/fusion_matrix.py --kernels rms_norm --rows 17x65  some rows
    python bench/fusion_matrix.py --json                           the same as JSON, with every sample

In eight rows the rule applies: the arms are ``fused`` and ``separate``. The other seven are controls: both arms are the
same machine code, so their ratios show what this machine does without any cause. Every other knob is equal: cached
input, private tiles, no private budget. As in the seed, a visit is 75 ms of warm-up and seven samples of about 20 ms,
in both orders; for rms_norm 64x256 and 1024x4096 also 100 ms and seven samples of about 30 ms, native calls only, in
all six orders of three arms, the third being ``separate`` once more. Each order runs in a process of its own, every
visit is checked, no sample is dropped. A ratio is paired within an order; its range is what was seen, not an interval.
Exit status 1 when an arm could not be measured. No time is judged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from search.device.spec import DeviceSpec
from search.errors import TunerError
from search.lowering.builder import Builder
from search.lowering.contract import BuildRequest
from search.measuring.attach import attached_devices
from search.measuring.protocol import PROTOCOLS, MeasureItem, Phase, Protocol
from search.measuring.run import Measurer
from search.outcome import Rejected
from search.planning.budget import check_budget
from search.planning.build import build_schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping
from search.stats.compare import paired_ratios
from search.stats.summary import median
from tuner_service.cli.output import print_line, print_table, say
from tuner_service.cli.words import case_words, ratio_words, seconds_words

WIDTH = 8
MAPPINGS = {"whole-program": 1, "packet-local": WIDTH}
"""Mapping to the lanes that share a row."""
TRIGGERED = (
    ("rms_norm", "1x4096"),
    ("rms_norm", "17x65"),
    ("rms_norm", "17x16384"),
    ("rms_norm", "64x256"),
    ("rms_norm", "1024x4096"),
    ("layer_norm", "1x4096"),
    ("layer_norm", "17x16384"),
    ("layer_norm", "1024x4096"),
)
CONTROLS = (
    ("masked_softmax", "64x4096"),
    ("swiglu", "17x65"),
    ("swiglu", "1024x4096"),
    ("gelu_residual", "17x65"),
    ("gelu_residual", "1024x4096"),
    ("rope", "17x66"),
    ("rope", "64x128"),
)
NATIVE = (("rms_norm", "64x256"), ("rms_norm", "1024x4096"))
MATRIX_PHASES: tuple[Phase, ...] = ("device_batch", "e2e_batch")
NATIVE_PHASES: tuple[Phase, ...] = ("device_batch",)
# The seed's protocols belong to this benchmark, so they are known to the Measurer only while it runs.
MATRIX = Protocol(name="fusion_matrix", warmup_seconds=0.075, samples=7, batch_seconds=0.020)
NATIVE_ENTRY = Protocol(name="fusion_native", warmup_seconds=0.100, samples=7, batch_seconds=0.030)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the report: a case under a mapping, with what is timed against what."""

    part: str
    """``matrix`` or ``native``."""
    kernel: str
    shape: str
    mapping: str
    triggered: bool

    @property
    def arms(self) -> tuple[str, ...]:
        """What is timed. ``again`` is the separate arm's machine code once more."""
        if self.part == "native":
            return ("separate", "fused", "again")
        return ("separate", "fused") if self.triggered else ("separate", "again")

    @property
    def ratios(self) -> tuple[tuple[str, str], ...]:
        """Numerator and denominator of each ratio that is reported."""
        return tuple((arm, "separate") for arm in self.arms if arm != "separate")

    @property
    def protocol(self) -> Protocol:
        """How each visit is sampled."""
        return NATIVE_ENTRY if self.part == "native" else MATRIX

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What each visit samples."""
        return NATIVE_PHASES if self.part == "native" else MATRIX_PHASES

    def candidate(self, arm: str) -> Candidate:
        """An arm's candidate: only ``fusion`` differs between arms."""
        return Candidate(
            width=WIDTH,
            input="cache",
            fusion="fused" if arm == "fused" else "separate",
            materialize="private",
            vector=1,
            unroll=1,
            partials=1,
            mapping=CpuMapping(local_lanes=MAPPINGS[self.mapping], row_block=1, simd_scope="all", nontemporal=False),
        )


def rows_of(kernels: Sequence[str] = (), shapes: Sequence[str] = ()) -> Iterator[Row]:
    """Every row, or those of some kernels and shapes; a case's rows stand together."""
    for part, cases in (("matrix", TRIGGERED), ("matrix", CONTROLS), ("native", NATIVE)):
        for kernel, shape in cases:
            if (not kernels or kernel in kernels) and (not shapes or shape in shapes):
                for mapping in MAPPINGS:
                    triggered = cases is not CONTROLS
                    yield Row(part=part, kernel=kernel, shape=shape, mapping=mapping, triggered=triggered)


def case_of(kernel: str, shape: str) -> Case:
    """The case at rows x columns; rope's columns are two halves."""
    rows, columns = (int(extent) for extent in shape.split("x"))
    if kernel == "rope":
        return resolve_case({"kernel": kernel, "dims": {"rows": rows, "parts": 2, "half": columns // 2}})
    return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": columns}})


def fusion_here(case: Case, row: Row) -> str:
    """What the planner says of fusing this row: ``admitted``, or why not."""
    schedule = build_schedule(case, row.candidate("fused"))
    if isinstance(schedule, Rejected):
        return str(schedule.detail.get("rule", schedule.reason))
    return "admitted"


def build_arms(builder: Builder, rows: Sequence[Row], cases: Mapping[tuple[str, str], Case]) -> dict[str, MeasureItem]:
    """Arm id to compiled kernel, everything in one batch. Raises TunerError when one cannot be built."""
    requests: dict[str, BuildRequest] = {}
    for row in rows:
        case = cases[row.kernel, row.shape]
        for arm in row.arms:
            name = "separate" if arm == "again" else arm
            schedule = build_schedule(case, row.candidate(name))
            if isinstance(schedule, Rejected) or check_budget(schedule, None) is not None:
                raise TunerError(f"{arm_id(row, name)} cannot be planned: {schedule}")
            requests[arm_id(row, name)] = BuildRequest(
                id=arm_id(row, name), case=case.document(), candidate=row.candidate(name).document()
            )
    items = {}
    for result in builder.build(list(requests.values()), timeout_seconds=120, cancelled=lambda: False):
        if result.artifact is None:
            raise TunerError(f"{result.id} cannot be built: {result.rejection}")
        items[result.id] = MeasureItem(id=result.id, artifact=result.artifact)
    return items


def arm_id(row: Row, arm: str) -> str:
    """What names a kernel in this run."""
    return f"{row.kernel} {row.shape} {row.mapping} {'separate' if arm == 'again' else arm}"


def orders(row: Row) -> list[tuple[str, ...]]:
    """Every order of the arms: two for two arms, six for three."""
    return list(permutations(row.arms))


def visit_all(
    device: DeviceSpec, row: Row, case: Case, items: Mapping[str, MeasureItem], work: Path
) -> list[dict[str, Any]]:
    """One record per visit, in the order taken. Raises TunerError when an arm fails."""
    visits = []
    for number, order in enumerate(orders(row)):
        with Measurer(device, work / "measuring") as measurer:
            for arm in order:
                item = items[arm_id(row, arm)]
                done = measurer.replay(case, item, phases=row.phases, protocol=row.protocol.name)
                if done.rejection is not None or done.checks is None or not done.checks.passed:
                    raise TunerError(f"{item.id}: {done.rejection or 'not checked'}")
                visits.append(
                    {
                        "order": number,
                        "arm": arm,
                        "artifact_sha256": item.artifact.artifact_sha256,
                        "elements_checked": sum(one.elements_checked for one in done.checks.inputs),
                        "guard_elements_checked": sum(one.guard_elements_checked for one in done.checks.inputs),
                        "started_at": done.started_at,
                        "finished_at": done.finished_at,
                        "timing": {phase: timing.document() for phase, timing in done.timing.items()},
                    }
                )
    return visits


def summary(row: Row, visits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Per phase the arms' times (median of the visits' medians) and the ratios paired within each order."""
    phases: dict[str, Any] = {}
    for phase in row.phases:
        taken: dict[str, list[float]] = {arm: [] for arm in row.arms}
        for visit in sorted(visits, key=lambda visit: int(visit["order"])):
            taken[visit["arm"]].append(visit["timing"][phase]["median_seconds"])
        ratios = {}
        for arm, base in row.ratios:
            paired = paired_ratios(taken[arm], taken[base])
            ratios[f"{arm}/{base}"] = {
                "ratios": list(paired.ratios),
                "median": paired.median,
                "min": paired.low,
                "max": paired.high,
                "class": paired.ratio_class,
            }
        phases[phase] = {"seconds": {arm: median(values) for arm, values in taken.items()}, "ratios": ratios}
    return phases


def losses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where fusion was slower in every order, by part and phase."""
    return [
        f"{one['part']} {one['case']} {one['mapping']} {phase}"
        for one in rows
        for phase, found in one["phases"].items()
        if found["ratios"].get("fused/separate", {}).get("class") == "positive"
    ]


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Build every arm, then visit row after row."""
    device = attached_devices(given.data_dir)[0]
    rows = list(rows_of(given.kernels, given.rows))
    if not rows:
        raise TunerError("no row has that kernel and shape")
    cases = {(row.kernel, row.shape): case_of(row.kernel, row.shape) for row in rows}
    builder = Builder(given.data_dir / "store")
    try:
        items = build_arms(builder, rows, cases)
    finally:
        builder.close()
    PROTOCOLS.update({protocol.name: protocol for protocol in (MATRIX, NATIVE_ENTRY)})
    done = []
    for number, row in enumerate(rows, 1):
        case = cases[row.kernel, row.shape]
        visits = visit_all(device, row, case, items, given.data_dir)
        done.append(
            {
                "part": row.part,
                "case": case_words(case.document()),
                "mapping": row.mapping,
                "triggered": row.triggered,
                "fusion_here": fusion_here(case, row),
                "candidates": {arm: row.candidate(arm).document() for arm in row.arms},
                "protocol": row.protocol.document(),
                "phases": summary(row, visits),
                "visits": visits,
            }
        )
        say(f"row {number} of {len(rows)}: {row.part} {done[-1]['case']} {row.mapping}")
    return {
        "device": device.name,
        "width": WIDTH,
        "private_budget_scalars": None,
        "visits": sum(len(one["visits"]) for one in done),
        "rows": done,
        "losses": losses(done),
    }


def show(found: Mapping[str, Any]) -> None:
    """The report as text."""
    print_line(f"Load/reduction fusion on {found['device']}, one thread, W = {found['width']}, no private budget")
    for part, title in (("matrix", "Matrix, both orders"), ("native", "Native entry, all six orders")):
        shown = []
        for one in found["rows"]:
            for phase, taken in one["phases"].items() if one["part"] == part else ():
                for name, ratio in taken["ratios"].items():
                    arm = name.split("/")[0]
                    shown.append(
                        [
                            one["case"],
                            one["mapping"],
                            phase,
                            "fused/separate" if arm == "fused" else "A/A control",
                            seconds_words(taken["seconds"]["separate"]),
                            seconds_words(taken["seconds"][arm]),
                            ratio_words(ratio),
                        ]
                    )
        if shown:
            print_line()
            print_line(title)
            print_table(["case", "mapping", "phase", "ratio of", ">separate", ">other arm", ">ratio [range]"], shown)
    print_line()
    print_line(f"{found['visits']} visits. Fusion slower in every order: {'; '.join(found['losses']) or 'nowhere'}")
    print_line("Below 1 the fused form is faster. A control's ratio has no cause in fusion: it is the machine's own.")
    print_line("A range is what the orders showed, not a confidence interval.")


def main() -> int:
    """Print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=[], metavar="A,B")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[], metavar="17x65,64x256")
    parser.add_argument("--data-dir", type=Path, default=Path(".data/bench-fusion"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        found = run(given)
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if given.json:
        json.dump(found, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

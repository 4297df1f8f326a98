"""Each kernel's winner against torch eager and Inductor's core, on the eight shapes of the CPU design: one table.

    python bench/winners.py                                          every kernel, every shape (hours)
    python bench/winners.py --kernels swiglu,rope --shapes 64x256    a slice
    python bench/winners.py --show                                   the table of what was measured so far

A case is searched by ``search.pipeline.Tuner``; its winner is timed in turns with torch on the same core. Each case is
one JSON file with every sample in ``--data-dir``, so a run can be stopped and goes on where it was; a file that was
measured with another program, space or toolchain is measured again. A ratio is the winner's time divided by torch's,
paired within rounds: below 1 the winner is faster. ``core`` is what torch.compile compiled, without its dispatch.
Exit status 1 when a case that was asked for has no ratio. No time is judged.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.device.spec import DeviceSpec
from search.errors import InvalidInput, TunerError
from search.ledger import CaseState
from search.measuring.attach import attached_devices
from search.pipeline import Tuner
from search.program.case import Case
from search.program.digest import program_digest
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.stats.compare import paired_ratios
from search.stats.summary import median
from tuner_service.cli.errors import CommandError
from tuner_service.cli.output import print_line, print_table, say
from tuner_service.cli.request import parse_space
from tuner_service.cli.words import candidate_words, ratio_words, seconds_words

SHAPES = ("1x4096", "17x65", "23x769", "64x256", "128x2048", "128x8193", "1024x4096", "17x16384")
SPACE = ("input=reload", "row_block=1,4")
"""Over the default lists: caching inputs loses on CPUs (in the seed's measurements too), several rows may win."""
BASELINES = {"torch_eager": "eager", "inductor_core": "core"}


def case_of(kernel: str, shape: str) -> Case | None:
    """The case of a kernel with that many rows and elements a row; None when rows of that length cannot be had."""
    rows, columns = (int(part) for part in shape.split("x"))
    dims = kernels()[kernel].program.dims
    if dims == ("rows", "cols"):
        return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": columns}})
    if dims == ("rows", "parts", "half") and columns % 2 == 0:
        return resolve_case({"kernel": kernel, "dims": {"rows": rows, "parts": 2, "half": columns // 2}})
    return None


def identity(case: Case, device: DeviceSpec, space: Sequence[str]) -> dict[str, Any]:
    """What a row must have in common with a run to count for it."""
    return {
        "program_digest": program_digest(case.program, case.params),
        "device": device.id,
        "toolchain": device.toolchain_fingerprint,
        "space": list(space),
    }


def row_of(state: CaseState, kernel: str, shape: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """What a settled search says, with the samples that its ratios come from."""
    settled = state.settled
    winner = state.trial(settled.winner) if settled is not None and settled.winner is not None else None
    baselines = {}
    for name, event in state.baselines.items():
        samples = event.samples
        theirs = samples.timing["device_batch"].samples_seconds if samples.timing else ()
        paired = paired_ratios(samples.kernel_seconds, theirs) if theirs and samples.kernel_seconds else None
        baselines[name] = {
            "ratio": {"median": paired.median, "min": paired.low, "max": paired.high} if paired else None,
            "kernel_seconds": list(samples.kernel_seconds),
            "torch_seconds": list(theirs),
            "implementation": samples.implementation,
            "allocation": samples.allocation,
            "error": samples.error,
        }
    outcomes = [trial.outcome for trial in state.trials if trial.in_space]
    return {
        **known,
        "kernel": kernel,
        "shape": shape,
        "candidate": winner.candidate.document() if winner is not None else None,
        "baselines": baselines,
        "enumerated": len(outcomes),
        "measured": outcomes.count("measured"),
        "rejected": outcomes.count("rejected"),
        "error": settled.error if settled is not None else "not settled",
    }


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Every row of a folder, kernels by name, shapes in the order of ``SHAPES``."""
    rows = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    order = {shape: place for place, shape in enumerate(SHAPES)}
    return sorted(rows, key=lambda row: (row["kernel"], order.get(row["shape"], len(order)), row["shape"]))


def table(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Cells of one row each: kernel, shape, times, ratios, winner."""
    cells = []
    for row in rows:
        eager = row["baselines"].get("torch_eager") or {}
        cells.append(
            [
                row["kernel"],
                row["shape"],
                seconds_words(median(eager["kernel_seconds"])) if eager.get("kernel_seconds") else "none",
                *(_ratio(row, name) for name in BASELINES),
                candidate_words(row["candidate"]) if row["candidate"] else row["error"] or "no winner",
            ]
        )
    return cells


def spans(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Cells of one kernel each: lowest, highest and geometric mean ratio over its shapes, against each baseline."""
    cells = []
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        line = [kernel]
        for name in BASELINES:
            found = [row["baselines"].get(name) for row in rows if row["kernel"] == kernel]
            ratios = [one["ratio"]["median"] for one in found if one and one["ratio"]]
            if not ratios:
                line.append("none")
                continue
            mean = math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
            line.append(f"{min(ratios):.2f}–{max(ratios):.2f}, mean {mean:.2f} ({len(ratios)})")
        cells.append(line)
    return cells


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The tables as text."""
    print_line("Winner over torch, paired rounds of one sitting; below 1 the winner is faster. One thread.")
    names = [f">winner / {word}" for word in BASELINES.values()]
    print_table(["kernel", "shape", ">winner", *names, "winner"], table(rows))
    print_line()
    print_table(["kernel", *(f"winner / {word}" for word in BASELINES.values())], spans(rows))
    print_line("[low, high] is the range of the rounds seen, not a confidence interval; (n) is the number of shapes.")


def _ratio(row: Mapping[str, Any], name: str) -> str:
    one = row["baselines"].get(name)
    if one is None:
        return "not asked"
    return ratio_words(one["ratio"]) if one["ratio"] else "none"


def run(given: argparse.Namespace) -> bool:
    """Measure what is missing; True when every case that was asked for has its ratios."""
    device = attached_devices(given.data_dir)[0]
    folder = given.data_dir / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    complete = True
    with Tuner(device, given.data_dir / "work") as tuner:
        for kernel in given.kernels:
            for shape in given.shapes:
                case = case_of(kernel, shape)
                if case is None:
                    say(f"{kernel} {shape}: rows of that length cannot be had")
                    continue
                known, path = identity(case, device, given.space), folder / f"{kernel}-{shape}.json"
                row = json.loads(path.read_text()) if path.exists() else {}
                if given.again or any(row.get(name) != value for name, value in known.items()):
                    state = tuner.tune(case, space=parse_space(given.space), baselines=tuple(given.baselines))
                    row = row_of(state, kernel, shape, known)
                    path.write_text(json.dumps(row, indent=1))
                ratios = {name: _ratio(row, name) for name in given.baselines}
                complete &= all((row["baselines"].get(name) or {}).get("ratio") for name in given.baselines)
                say(f"{kernel} {shape}: {ratios}")
    return complete


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", default=",".join(kernels()), help="names with commas; default: all")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"default: {','.join(SHAPES)}")
    parser.add_argument("--space", action="append", metavar="KNOB=A,B", help=f"default: {' '.join(SPACE)}")
    parser.add_argument("--baselines", default=",".join(BASELINES), help=f"default: {','.join(BASELINES)}")
    parser.add_argument("--data-dir", type=Path, default=Path(".data/bench-winners"))
    parser.add_argument("--again", action="store_true", help="measure cases that have a row again")
    parser.add_argument("--show", action="store_true", help="measure nothing; print every row there is")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    given = parser.parse_args()
    given.kernels, given.shapes = given.kernels.split(","), given.shapes.split(",")
    given.baselines, given.space = given.baselines.split(","), given.space or list(SPACE)
    if unknown := [name for name in given.kernels if name not in kernels()]:
        parser.error(f"no kernel {', '.join(unknown)}; there are {', '.join(kernels())}")
    complete = True
    if not given.show:
        try:
            complete = run(given)
        except (InvalidInput, CommandError) as error:
            parser.error(str(error))
        except TunerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    rows = read_rows(given.data_dir / "rows")
    wanted = [row for row in rows if given.show or (row["kernel"] in given.kernels and row["shape"] in given.shapes)]
    if given.json:
        json.dump(wanted, sys.stdout, indent=1)
        print()
    else:
        show(wanted)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

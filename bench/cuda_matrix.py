"""Hundreds of CUDA candidates lowered, compiled and inspected: what fails and why, what spills, what is one kernel.

    python bench/cuda_matrix.py                              all of them (a minute or two on two cores)
    python bench/cuda_matrix.py --architecture sm_80 --kernels softmax --columns 65,2048 --json matrix.json

Kernels × N × W × V × reload/cache × R; what planning refuses is counted and not built. No GPU is needed and nothing is
run. Prints per kernel: built, refused by planning, rejected (with reasons), spilling, and reloads whose code is that of
the cached candidate; then the seconds a candidate takes on average, lowering overlapping compilation. Exit status 1
when a candidate fails for another reason than its resources.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search.lowering.builder import Builder
from search.lowering.contract import BuildRequest, BuildResult
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping
from tuner_service.cli.output import print_line, print_table

KERNELS = "softmax,rms_norm,layer_norm"
COLUMNS = "65,769,2048,4096,8193,16384"
WIDTHS = (32, 64, 128, 256, 512, 1024)
VECTORS = (1, 4)
WORDS = ("reload", "cache")
ROWS_PER_BLOCK = (1, 4)
MOST_SCALARS_PER_LANE = 256
"""Of one tile: what holds more in registers spills whatever else it does, and takes the compiler half a minute."""
SILENCE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One candidate of one case."""

    case: Case
    candidate: Candidate
    refused: Rejected | None
    """By planning."""

    @property
    def id(self) -> str:
        """Unique in the matrix."""
        mapping = self.candidate.mapping
        assert isinstance(mapping, CudaMapping)
        made = self.candidate
        return (
            f"{self.case.kernel}-{self.case.dims['cols']}-W{made.width}-V{made.vector}-{made.input}"
            f"-R{mapping.rows_per_block}"
        )


def configurations(kernels: list[str], columns: list[int]) -> Iterator[Configuration]:
    """The matrix, in order; what no register file holds is left out."""
    for kernel in kernels:
        for cols in columns:
            case = resolve_case({"kernel": kernel, "dims": {"rows": 64, "cols": cols}})
            for width in WIDTHS:
                if -(-cols // width) > MOST_SCALARS_PER_LANE:
                    continue
                for vector in VECTORS:
                    for word in WORDS:
                        for rows_per_block in ROWS_PER_BLOCK:
                            candidate = Candidate(
                                width=width,
                                input=word,
                                fusion="separate",
                                materialize="private",
                                vector=vector,
                                unroll=1,
                                partials=1,
                                mapping=CudaMapping(rows_per_block=rows_per_block),
                            )
                            made = build_schedule(case, candidate)
                            refused = made if isinstance(made, Rejected) else None
                            yield Configuration(case=case, candidate=candidate, refused=refused)


def build(wanted: list[Configuration], architecture: str, folder: Path) -> tuple[dict[str, BuildResult], float]:
    """Results by id, and the seconds that all took together, TileLang's import not counted."""
    builder = Builder(folder, target="cuda", architecture=architecture)
    requests = [BuildRequest(id=one.id, case=one.case.document(), candidate=one.candidate.document()) for one in wanted]
    try:
        warm = [replace(requests[0], id="warm")]
        list(builder.build(warm, timeout_seconds=SILENCE_SECONDS, cancelled=lambda: False))
        started = time.perf_counter()
        results = list(builder.build(requests, timeout_seconds=SILENCE_SECONDS, cancelled=lambda: False))
        return {result.id: result for result in results}, time.perf_counter() - started
    finally:
        builder.close()


def row_of(one: Configuration, results: dict[str, BuildResult]) -> dict[str, Any]:
    """What came of a configuration, as data."""
    out: dict[str, Any] = {"id": one.id, "kernel": one.case.kernel, "candidate": one.candidate.document()}
    if one.refused is not None:
        return {**out, "outcome": "refused", "reason": one.refused.reason}
    result = results[one.id]
    facts = None if result.facts is None else result.facts.document()
    if result.rejection is not None:
        return {**out, "outcome": "rejected", "rejection": result.rejection.document(), "code": facts}
    return {**out, "outcome": "built", "code": facts}


def merged_reloads(rows: list[dict[str, Any]]) -> set[str]:
    """Ids of reload candidates whose machine code is that of the cached one with the same other knobs."""
    codes = {row["id"]: row["code"]["artifact_sha256"] for row in rows if row["outcome"] == "built"}
    return {name for name in codes if "-reload-" in name and codes.get(name.replace("reload", "cache")) == codes[name]}


def main() -> int:
    """Plan, build, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", default=KERNELS, help=f"default: {KERNELS}")
    parser.add_argument("--columns", default=COLUMNS, help=f"default: {COLUMNS}")
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--json", type=Path, help="write every row there")
    given = parser.parse_args()
    kernels = given.kernels.split(",")
    matrix = list(configurations(kernels, [int(part) for part in given.columns.split(",")]))
    wanted = [one for one in matrix if one.refused is None]
    with tempfile.TemporaryDirectory() as folder:
        results, seconds = build(wanted, given.architecture, Path(folder))
    rows = [row_of(one, results) for one in matrix]
    merged = merged_reloads(rows)
    table = []
    for kernel in kernels:
        mine = [row for row in rows if row["kernel"] == kernel]
        outcomes = Counter(row["outcome"] for row in mine)
        spilling = sum(1 for row in mine if row["outcome"] == "built" and row["code"]["spill_bytes"])
        reloads = sum(1 for row in mine if row["id"] in merged)
        figures = (outcomes["built"], outcomes["refused"], outcomes["rejected"], spilling, reloads)
        table.append([kernel, *map(str, figures)])
    head = ["kernel", ">built", ">refused by planning", ">rejected", ">spilling", ">reloads like cached"]
    print_table(head, table)
    failures = [row for row in rows if row["outcome"] == "rejected"]
    for row in failures:
        print_line(
            f"{row['id']}: {row['rejection']['stage']}/{row['rejection']['reason']} {row['rejection']['detail']}"
        )
    alike = len({row["code"]["artifact_sha256"] for row in rows if row["outcome"] == "built"})
    built = sum(row["outcome"] == "built" for row in rows)
    print_line(f"{len(matrix)} configurations, {built} built for {given.architecture}, {alike} different kernels")
    print_line(f"{seconds:.1f} s, {seconds / max(len(wanted), 1):.3f} s per candidate: lower, compile, inspect")
    if given.json is not None:
        document = {
            "architecture": given.architecture,
            "seconds": seconds,
            "merged_reloads": sorted(merged),
            "rows": rows,
        }
        given.json.write_text(json.dumps(document, indent=1))
    return 1 if any(row["rejection"]["stage"] != "resources" for row in failures) else 0


if __name__ == "__main__":
    sys.exit(main())

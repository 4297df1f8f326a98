"""Every kernel in every shape of the seeds: planned over the default space, its default built and checked in full.

    python bench/kernel_matrix.py                                   all of it (minutes; the oracle of the large shapes)
    python bench/kernel_matrix.py --kernels rope --shapes 17x66,1x1

For each case: candidates accepted and rejected by planning, and whether the untuned default agrees with the float64
oracle on every input set, with guards intact. No time is measured. Exit status 1 when a case has no candidate or fails.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.bench import Bench
from search.planning.budget import DEFAULT_BUDGET_SCALARS
from search.planning.plan import plan_case
from search.program.case import Case
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space
from tuner_service.cli.output import print_line, print_table

SHAPES = "1x1,5x1,1x4096,17x65,17x66,64x128,64x256,23x769,128x2048,128x8193,17x16384,1024x4096"


def case_of(kernel: str, rows: int, columns: int) -> Case | None:
    """The case of a kernel with that many rows and elements a row; None when rows of that length cannot be had."""
    dims = kernels()[kernel].program.dims
    if dims == ("rows", "cols"):
        return resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": columns}})
    if dims == ("rows", "parts", "half") and columns % 2 == 0:
        return resolve_case({"kernel": kernel, "dims": {"rows": rows, "parts": 2, "half": columns // 2}})
    return None


def run(artifact: Artifact, bench: Bench) -> dict[str, Any]:
    """One call of a kernel over the bench's buffers."""
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    function(
        *(
            ctypes.c_int32(bench.case.rows) if one.kind == "dim" else ctypes.c_void_p(bench.buffers[one.name].address)
            for one in artifact.arguments
        )
    )
    return bench.output_arrays


def main() -> int:
    """Plan, build, check, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", default=",".join(kernels()))
    parser.add_argument("--shapes", default=SHAPES, help=f"default: {SHAPES}")
    given = parser.parse_args()
    rows, requests, cases = [], [], {}
    for kernel in given.kernels.split(","):
        for shape in given.shapes.split(","):
            case = case_of(kernel, *(int(part) for part in shape.split("x")))
            if case is None:
                continue
            space, limit = resolve_space({}, case, "cpu"), DEFAULT_BUDGET_SCALARS
            planned = list(plan_case(case, space, budget_scalars=limit))
            inside = [item for item in planned if item.in_space]
            default = next(item for item in planned if item.is_default)
            accepted = sum(item.rejection is None for item in inside)
            key = f"{kernel} {shape}"
            cases[key] = (case, accepted, len(inside) - accepted)
            requests.append(BuildRequest(id=key, case=case.document(), candidate=default.candidate.document()))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder) / "store")
        try:
            built = {r.id: r for r in builder.build(requests, timeout_seconds=900, cancelled=lambda: False)}
        finally:
            builder.close()
        for key, (case, accepted, rejected) in cases.items():
            artifact, outcome = built[key].artifact, "not built"
            if artifact is not None:
                bench = Bench(case, Path(folder) / "oracle")
                verdict = bench.check(lambda artifact=artifact, bench=bench: run(artifact, bench))
                checked = sum(one.elements_checked for one in verdict.checks.inputs)
                outcome = f"right, {checked} elements" if verdict.checks.passed else str(verdict.rejection)
            failed += accepted == 0 or not outcome.startswith("right")
            rows.append([*key.split(), str(accepted), str(rejected), outcome])
    print_table(["kernel", "shape", ">accepted", ">rejected", "the untuned default"], rows)
    print_line(f"{len(rows)} cases, {failed} without a candidate or wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

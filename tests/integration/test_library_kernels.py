"""Every kernel of the library: planned in every seed shape, built and checked against the oracle, torch beside it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.bench import Bench
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.program.case import Case
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain


def candidate(width: int, lanes: int, **knobs: Any) -> Candidate:
    mapping = {name: knobs.pop(name) for name in ("row_block", "simd_scope", "nontemporal") if name in knobs}
    chosen = {"input": "reload", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1} | knobs
    return Candidate(width=width, fusion="separate", mapping=CpuMapping(local_lanes=lanes, **mapping), **chosen)


CANDIDATES = (
    candidate(16, 16, simd_scope="all"),
    candidate(32, 32, materialize="recompute", nontemporal=True),
    candidate(8, 1, input="cache", vector=2, partials=2, row_block=2),
    candidate(64, 64, materialize="output", simd_scope="main"),
)
SHAPES = ((17, 66), (5, 770))


def case_of(kernel: str, rows: int, columns: int) -> Case:
    """A case by rows and elements of a row."""
    program = kernels()[kernel].program
    dims = (
        {"rows": rows, "cols": columns} if "cols" in program.dims else {"rows": rows, "parts": 2, "half": columns // 2}
    )
    return resolve_case({"kernel": kernel, "dims": dims})


def run(artifact: Artifact, bench: Bench) -> dict[str, Any]:
    """One call of a kernel over the bench's buffers."""
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    arguments = [
        ctypes.c_int32(bench.case.rows) if one.kind == "dim" else ctypes.c_void_p(bench.buffers[one.name].address)
        for one in artifact.arguments
    ]
    assert function(*arguments) == 0
    return bench.output_arrays


def test_every_kernel_is_right_under_every_kind_of_candidate(tmp_path: Path) -> None:
    cases = {f"{name}/{shape}": case_of(name, *SHAPES[shape]) for name in kernels() for shape in range(len(SHAPES))}
    requests = []
    for number, (key, case) in enumerate(cases.items()):
        # One of the four that the kernel can have, another for the next shape.
        start = number + number // 4
        place = next(
            place
            for place in (at % 4 for at in range(start, start + 4))
            if not isinstance(build_schedule(case, CANDIDATES[place]), Rejected)
        )
        chosen = CANDIDATES[place].document()
        requests.append(BuildRequest(id=f"{key}/{place}", case=case.document(), candidate=chosen))
    assert {key.split("/")[0] for key in (request.id for request in requests)} == set(kernels())
    builder = Builder(tmp_path / "store")
    try:
        results = list(builder.build(requests, timeout_seconds=300, cancelled=lambda: False))
    finally:
        builder.release()
    built = {result.id: result for result in results}
    wrong = {}
    for key, case in cases.items():
        bench = Bench(case, tmp_path / "oracle")
        for request in requests:
            if request.id.rsplit("/", 1)[0] != key:
                continue
            artifact = built[request.id].artifact
            if artifact is None:
                wrong[request.id] = built[request.id]
                continue
            verdict = bench.check(lambda artifact=artifact, bench=bench: run(artifact, bench))
            if not verdict.checks.passed:
                wrong[request.id] = verdict.rejection
    assert wrong == {}, "\n".join(f"{key}: {found}" for key, found in wrong.items())

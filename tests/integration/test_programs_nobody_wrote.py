"""Programs that nobody here wrote, compiled: random ones, and one whose every name is a word of C, Python or TileLang.

Each is judged by the product's own check against the oracle, and the random ones on one input set by a plain evaluation
of the document, which shares no code with the oracle.
"""

from __future__ import annotations

import ctypes
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "property"))

from random_programs import evaluate_by_hand, random_program

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.bench import Bench
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain

WORDS = {
    "name": "main",
    "params": {"double": 0.5, "static": 2},
    "dims": ["int", "long"],
    "axes": {"row": {"dim": "int", "kind": "row"}, "for": {"dim": "long", "kind": "column"}},
    "tensors": {
        "restrict": {"axes": ["row", "for"], "role": "input"},
        "T": {"axes": ["for"], "role": "input"},
        "kernel": {"axes": ["row", "for"], "role": "output"},
        "bx": {"axes": ["row"], "role": "output"},
    },
    "body": [
        {"reducer": {"name": "while", "op": "sum", "seed": "double"}},
        {
            "loop": {
                "count": "static",
                "index": "lambda",
                "body": [
                    {"let": {"name": "volatile", "value": "cast(lambda, float32)"}},
                    {"update": {"reducer": "while", "over": ["for"], "value": "restrict * T + volatile"}},
                ],
            }
        },
        {"finalize": {"reducer": "while", "into": "class"}},
        {"tile": {"name": "def", "over": ["for"], "value": "restrict - class"}},
        {"let": {"name": "F32", "value": "tanh(class)"}},
        {"store": {"tensor": "bx", "over": [], "value": "F32 + class"}},
        {"store": {"tensor": "kernel", "over": ["for"], "value": "def * T + F32"}},
    ],
}


def candidate(width: int, lanes: int, **knobs: Any) -> Candidate:
    mapping = CpuMapping(local_lanes=lanes, row_block=knobs.pop("row_block", 1), simd_scope=knobs.pop("simd", "all"))
    plain = {"vector": 1, "unroll": 1, "partials": 1, "input": "reload", "fusion": "separate", "materialize": "private"}
    return Candidate(width=width, mapping=mapping, **{**plain, **knobs})


CANDIDATES = (
    candidate(16, 16),
    candidate(32, 32, materialize="recompute", partials=2),
    candidate(8, 1, vector=2, row_block=2),
    candidate(16, 4, partials=2, vector=4, unroll=2, simd="main"),
)
SEEDS = (3, 21, 28, 41, 57, 66)


def cases() -> dict[str, tuple[Any, Case]]:
    """Document and case of each program, the wordy one first."""
    found = {"words": (WORDS, resolve_case({"program": WORDS, "dims": {"int": 9, "long": 37}}))}
    for seed in SEEDS:
        chance = random.Random(seed)
        document = random_program(chance)
        dims = {"rows": chance.randint(1, 9), "ni": chance.randint(1, 5), "nj": chance.choice([1, 7, 33, 50])}
        params = {"trips": chance.randint(0, 3)}
        found[f"seed {seed}"] = (document, resolve_case({"program": document, "dims": dims, "params": params}))
    return found


def run(artifact: Artifact, bench: Bench) -> dict[str, Any]:
    """One call over the bench's buffers."""
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    arguments = [
        ctypes.c_int32(bench.case.rows) if one.kind == "dim" else ctypes.c_void_p(bench.buffers[one.name].address)
        for one in artifact.arguments
    ]
    assert function(*arguments) == 0
    return bench.output_arrays


def test_programs_that_nobody_wrote_compute_what_they_say(tmp_path: Path) -> None:
    known = cases()
    requests = []
    for number, (name, (_, case)) in enumerate(known.items()):
        legal = [one for one in CANDIDATES if isinstance(build_schedule(case, one), Schedule)]
        chosen = legal[number % len(legal)]
        requests.append(BuildRequest(id=name, case=case.document(), candidate=chosen.document()))
    builder = Builder(tmp_path / "store")
    try:
        built = {one.id: one for one in builder.build(requests, timeout_seconds=300, cancelled=lambda: False)}
    finally:
        builder.release()
    for name, (document, case) in known.items():
        artifact = built[name].artifact
        assert artifact is not None, (name, built[name].rejection)
        bench = Bench(case, tmp_path / name)
        verdict = bench.check(lambda artifact=artifact, bench=bench: run(artifact, bench))
        assert verdict.checks.passed, (name, verdict.rejection)
        if document is WORDS:
            continue  # the plain evaluation takes expressions for Python
        bench.load_normal()
        inputs = {t.name: bench.buffers[t.name].array for t in case.program.tensors if t.role == "input"}
        exact = {key: np.array(value, dtype=np.float64) for key, value in inputs.items()}
        expected = evaluate_by_hand(document, dict(case.dims), dict(case.params), exact)
        for output, values in run(artifact, bench).items():
            near = np.isclose(values, expected[output], rtol=1e-3, atol=1e-3)
            assert near.mean() > 0.99, (name, output)  # a comparison may fall the other way in single precision

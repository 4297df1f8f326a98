"""float16, bfloat16 and int32 programs through TileLang and gcc, against the product's own bench."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.bench import Bench
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain


def candidate(
    width: int,
    lanes: int | None = None,
    *,
    row_block: int = 1,
    simd: Any = "none",
    nontemporal: bool = False,
    **knobs: Any,
) -> Candidate:
    mapping = CpuMapping(local_lanes=lanes or width, row_block=row_block, simd_scope=simd, nontemporal=nontemporal)
    plain: dict[str, Any] = {
        "input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1
    }  # fmt: skip
    return Candidate(width=width, mapping=mapping, **plain | knobs)


CANDIDATES = {
    "w32-recompute": candidate(32, simd="main", materialize="recompute"),
    "fused-v4-p2": candidate(8, input="cache", fusion="fused", vector=4, partials=2, materialize="recompute"),
    "v16-half": candidate(8, 4, vector=16, simd="main"),
    "whole-program-cache": candidate(8, 1, simd="all", input="cache"),
    "quarter-v2-p2-rb2": candidate(16, 4, vector=2, partials=2, row_block=2, input="cache"),
    "stream-rb2": candidate(32, nontemporal=True, materialize="recompute", simd="main", row_block=2),
    "stream-half": candidate(64, 32, nontemporal=True),
}
PROBES = ("fused-v4-p2", "whole-program-cache", "stream-rb2", "stream-half")
KERNELS = {"softmax": 65, "rms_norm": 130, "layer_norm": 203}
"""Columns of each; none divides a packet, and each leaves a tail that is shorter than a block, or longer."""
AXES: dict[str, Any] = {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}}
MIXED: dict[str, Any] = {
    "name": "mixed",
    "dims": ["rows", "cols"],
    "axes": AXES,
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float16"},
        "residual": {"axes": ["row", "col"], "role": "input", "dtype": "bfloat16"},
        "scale": {"axes": ["row"], "role": "input", "dtype": "bfloat16"},
        "sum": {"axes": ["row", "col"], "role": "output", "dtype": "float16"},
        "y": {"axes": ["row", "col"], "role": "output", "dtype": "bfloat16"},
        "mean": {"axes": ["row"], "role": "output", "dtype": "float16"},
        "rounded": {"axes": ["row", "col"], "role": "output", "dtype": "float32"},
    },
    "body": [
        {"tile": {"name": "added", "over": ["col"], "value": "x + residual"}},
        {"tile": {"name": "positive", "over": ["col"], "value": "added > 0.0"}},
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "added"}},
        {"store": {"tensor": "sum", "over": ["col"], "value": "added"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "select(positive, added * scale, x)"}},
        {"store": {"tensor": "mean", "over": [], "value": "total / cols"}},
        {"store": {"tensor": "rounded", "over": ["col"], "value": "cast(x, bfloat16) + cast(residual, float16)"}},
    ],
}
SHIFTED: dict[str, Any] = {
    "name": "shifted",
    "dims": ["rows", "cols", "pairs"],
    "axes": {**AXES, "pair": {"dim": "pairs", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float16"},
        "y": {"axes": ["row", "pair"], "role": "output", "like": "x"},
        "first": {"axes": ["row"], "role": "output", "like": "x"},
    },
    "body": [
        {"store": {"tensor": "y", "over": ["pair"], "value": "x[pair] * x[pair + pairs] - x[2 * pair]"}},
        {"store": {"tensor": "first", "over": [], "value": "x[0] + x[cols - 1]"}},
    ],
}
INTEGERS: dict[str, Any] = {
    "name": "integers",
    "dims": ["rows", "cols"],
    "axes": AXES,
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "int32"},
        "label": {"axes": ["row"], "role": "input", "dtype": "int32"},
        "bits": {"axes": ["row"], "role": "output", "dtype": "int32"},
        "mixed": {"axes": ["row", "col"], "role": "output", "dtype": "int32"},
        "picked": {"axes": ["row"], "role": "output", "dtype": "float32"},
    },
    "body": [
        {"reduce": {"into": "all", "op": "and", "over": ["col"], "value": "x"}},
        {"reduce": {"into": "odd", "op": "xor", "over": ["col"], "value": "x"}},
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x * x - index(col)"}},
        {"reduce": {"into": "most", "op": "max", "over": ["col"], "value": "abs(x)"}},
        {"tile": {"name": "kept", "over": ["col"], "value": "x + total"}},
        {"reduce": {"into": "least", "op": "min", "over": ["col"], "value": "-kept"}},
        {"reducer": {"name": "chosen", "op": "sum"}},
        {"update": {"reducer": "chosen", "over": ["col"], "where": "index(col) == label", "value": "cast(x, float32)"}},
        {"finalize": {"reducer": "chosen", "into": "value"}},
        {"store": {"tensor": "bits", "over": [], "value": "all + odd * most"}},
        {"store": {"tensor": "mixed", "over": ["col"], "value": "max(kept, least) * 3"}},
        {"store": {"tensor": "picked", "over": [], "value": "value"}},
    ],
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.release()


def built(builder: Builder, items: Mapping[str, tuple[Case, Candidate]]) -> dict[str, Artifact]:
    requests = [
        BuildRequest(id=name, case=case.document(), candidate=made.document()) for name, (case, made) in items.items()
    ]
    artifacts = {}
    for result in builder.build(requests, timeout_seconds=120, cancelled=lambda: False):
        assert result.artifact is not None, (result.id, result.rejection)
        artifacts[result.id] = result.artifact
    return artifacts


def assert_right(bench: Bench, artifact: Artifact, label: str) -> None:
    """Every input set of the product's check, on guarded buffers."""
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    arguments: list[Any] = [
        ctypes.c_void_p(bench.buffers[argument.name].address)
        if argument.kind == "tensor"
        else ctypes.c_int32(bench.case.dims[argument.name])
        for argument in artifact.arguments
    ]

    def call() -> Mapping[str, Any]:
        assert function(*arguments) == 0
        return bench.output_arrays

    verdict = bench.check(call)
    assert verdict.rejection is None, (label, verdict.rejection.document() if verdict.rejection else None)
    assert all(one.elements_checked > 0 for one in verdict.checks.inputs)


def legal(case: Case, candidates: Mapping[str, Candidate]) -> dict[str, Candidate]:
    return {name: made for name, made in candidates.items() if isinstance(build_schedule(case, made), Schedule)}


def test_kernels_of_16_bits_are_right_under_every_kind_of_knob(builder: Builder, tmp_path: Path) -> None:
    """Each candidate in both dtypes, and over the kernels in turn: rms_norm where the kernel cannot have it."""
    cases = {
        (kernel, dtype): resolve_case({"kernel": kernel, "dims": {"rows": 19, "cols": cols}, "dtypes": {"x": dtype}})
        for kernel, cols in KERNELS.items()
        for dtype in ("float16", "bfloat16")
    }
    items: dict[str, tuple[Case, Candidate]] = {}
    for number, (name, made) in enumerate(CANDIDATES.items()):
        for shift, dtype in enumerate(("float16", "bfloat16")):
            kernel = list(KERNELS)[(number + shift) % 3]
            case = cases[kernel if legal(cases[kernel, dtype], {name: made}) else "rms_norm", dtype]
            assert set(case.dtypes.values()) == {dtype}
            items[f"{case.kernel} {dtype} {name}"] = case, made
    assert {label.rsplit(" ", 1)[0] for label in items} == {f"{kernel} {dtype}" for kernel, dtype in cases}
    benches = {case: Bench(cases[case], tmp_path) for case in cases}
    for label, artifact in built(builder, items).items():
        kernel, dtype, _ = label.split()
        assert_right(benches[kernel, dtype], artifact, label)


def test_programs_of_mixed_dtypes(builder: Builder, tmp_path: Path) -> None:
    dims = {"rows": 19, "cols": 80, "pairs": 40}
    items: dict[str, tuple[Case, Candidate]] = {}
    benches = {}
    for document in (MIXED, SHIFTED, INTEGERS):
        case = resolve_case({"program": document, "dims": {dim: dims[dim] for dim in document["dims"]}})
        benches[case.kernel] = Bench(case, tmp_path)
        chosen = legal(case, {name: CANDIDATES[name] for name in PROBES})
        assert len(chosen) >= 2
        items |= {f"{case.kernel} {name}": (case, made) for name, made in chosen.items()}
    integers, staged = items["integers stream-half"][0], candidate(8, simd="all", materialize="output")
    assert legal(integers, {"staged": staged}), "an int32 output holds an int32 tile"
    items["integers staged"] = integers, staged
    for label, artifact in built(builder, items).items():
        assert_right(benches[label.split()[0]], artifact, label)

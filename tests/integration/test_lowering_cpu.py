"""Schedules lowered through TileLang and gcc, run through ctypes, compared with the float64 oracle."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest, BuildResult
from search.measuring.checks import Tally, compare_output
from search.measuring.oracle import OraclePass, compute_oracle, rows_first
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain
GUARD = 80
LINE = 16
"""Scalars of one line of memory."""
POISON = np.float32(-7.25e33)


def candidate(
    width: int = 16,
    *,
    lanes: int | None = None,
    words: str = "reload",
    fusion: str = "separate",
    materialize: str = "private",
    vector: int = 1,
    unroll: int = 1,
    partials: int = 1,
    row_block: int = 1,
    simd: str = "none",
    nontemporal: bool = False,
) -> Candidate:
    mapping = CpuMapping(local_lanes=lanes or width, row_block=row_block, simd_scope=simd, nontemporal=nontemporal)
    return Candidate(
        width=width,
        input=words,
        fusion=fusion,
        materialize=materialize,
        vector=vector,
        unroll=unroll,
        partials=partials,
        mapping=mapping,
    )


CANDIDATES = {
    "one": candidate(1),
    "w8": candidate(8, simd="all"),
    "w16": candidate(16),
    "w32-main": candidate(32, simd="main", materialize="output"),
    "w64-all": candidate(64, simd="all", materialize="recompute"),
    "cache": candidate(16, words="cache", simd="main"),
    "fused": candidate(32, words="cache", fusion="fused", materialize="recompute"),
    "v4": candidate(8, vector=4),
    "v2-p2-u4": candidate(16, vector=2, partials=2, unroll=4, simd="main", words="cache"),
    "v16-half": candidate(8, lanes=4, vector=16, simd="main"),
    "p8": candidate(8, partials=8, materialize="recompute"),
    "p4-u3": candidate(4, partials=4, unroll=3),
    "rb2": candidate(16, row_block=2, simd="all"),
    "rb4": candidate(32, row_block=4, materialize="output"),
    "whole": candidate(16, lanes=1),
    "whole-simd": candidate(8, lanes=1, simd="all", words="cache", materialize="output"),
    "whole-v4-rb2": candidate(4, lanes=1, vector=4, row_block=2, partials=2, simd="main"),
    "half": candidate(16, lanes=8, simd="all"),
    "quarter-v2-p2-rb2": candidate(16, lanes=4, vector=2, partials=2, row_block=2, words="cache"),
    "stream16": candidate(16, nontemporal=True, materialize="recompute"),
    "stream64-rb4": candidate(64, nontemporal=True, row_block=4, simd="main"),
    "stream-v2": candidate(16, nontemporal=True, vector=2, simd="all"),
    "stream-half": candidate(32, lanes=16, nontemporal=True, simd="all"),
    "stream-quarter-v4-p2": candidate(16, lanes=4, vector=4, partials=2, nontemporal=True, words="cache"),
    "stream-whole-v16-rb2": candidate(16, lanes=1, vector=16, row_block=2, nontemporal=True, simd="main"),
    "stream-too-short": candidate(32, lanes=8, nontemporal=True, simd="main"),
}
ROWS = (1, 5, 19)
"""Below, at and above a packet of 16 rows; never a multiple of one."""
RAGGED = 65
COLUMNS = (1, 7, 256, 1027)
KERNELS = ("softmax", "rms_norm", "layer_norm")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.release()


def build(builder: Builder, items: Mapping[str, tuple[Case, Candidate]], **options: Any) -> dict[str, BuildResult]:
    requests = [
        BuildRequest(id=name, case=case.document(), candidate=candidate.document())
        for name, (case, candidate) in items.items()
    ]
    results = list(builder.build(requests, timeout_seconds=120, cancelled=lambda: False, **options))
    assert sorted(result.id for result in results) == sorted(items)
    return {result.id: result for result in results}


def guarded(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A poisoned array with guards on both sides: (everything, the part in the middle, which begins a line)."""
    size = int(np.prod(shape))
    # Stores stream only to whole lines: elsewhere rows would take the other branch, or not, as memory happens to lie.
    space = np.empty(size + 2 * GUARD + LINE, np.float32)
    first = -(space.ctypes.data // 4 + GUARD) % LINE
    whole = space[first : first + size + 2 * GUARD]
    whole[...] = POISON
    return whole, whole[GUARD : GUARD + size].reshape(shape)


def run(artifact: Artifact, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Call a kernel once; its outputs. Asserts that guards and inputs are untouched."""
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    buffers = {tensor.name: guarded(case.shape(tensor)) for tensor in case.program.tensors}
    for name, value in inputs.items():
        buffers[name][1][...] = value
    arguments: list[Any] = []
    for argument in artifact.arguments:
        if argument.kind == "dim":
            assert argument.name == case.program.row_axis.dim
            arguments.append(ctypes.c_int32(case.rows))
        else:
            arguments.append(ctypes.c_void_p(buffers[argument.name][1].ctypes.data))
    assert function(*arguments) == 0
    for name, (whole, middle) in buffers.items():
        assert (whole[:GUARD] == POISON).all(), f"guard before {name}"
        assert (whole[-GUARD:] == POISON).all(), f"guard after {name}"
        if name in inputs:
            np.testing.assert_array_equal(middle, inputs[name])
    return {t.name: buffers[t.name][1] for t in case.program.tensors if t.role == "output"}


_ORACLES: dict[str, list[OraclePass]] = {}


def oracle(case: Case) -> list[OraclePass]:
    """The oracle of a case; every candidate of it is compared with the same arrays."""
    key = json.dumps(case.document(), sort_keys=True)
    if key not in _ORACLES:
        _ORACLES[key] = list(compute_oracle(case))
    return _ORACLES[key]


def check(artifact: Artifact, case: Case, label: str) -> int:
    """Run on every input set of the product's correctness check, with its tolerance; elements checked."""
    checked = 0
    for given in oracle(case):
        outputs = run(artifact, case, given.given.inputs)
        tally = Tally()
        for name, expected in given.expected.items():
            got = rows_first(case, name, outputs[name])
            compare_output(name, got, expected, np.flatnonzero(got == POISON), tally)
        assert not tally.failures, f"{label} {given.given.name}: {tally.first_failure}"
        checked += tally.elements
    return checked


def at_rows(case: Case, rows: int) -> Case:
    return replace(case, dims={**case.dims, case.program.row_axis.dim: rows})


def legal(case: Case, candidates: Mapping[str, Candidate]) -> dict[str, tuple[Case, Candidate]]:
    """The candidates that planning admits."""
    return {
        name: (case, candidate)
        for name, candidate in candidates.items()
        if isinstance(build_schedule(case, candidate), Schedule)
    }


def columns(kernel: str, number: int) -> int:
    """Columns that a candidate is built for: ragged ones in two of the kernels, and in the third others, in turn."""
    turn, kind = divmod(number, len(KERNELS))
    return COLUMNS[turn % len(COLUMNS)] if kind == KERNELS.index(kernel) else RAGGED


@pytest.mark.parametrize("kernel", [*KERNELS[:2], pytest.param(KERNELS[2], marks=pytest.mark.full)])
def test_every_knob_computes_the_kernel_at_odd_shapes(builder: Builder, kernel: str) -> None:
    """One binary serves every number of rows, so each is run at several."""
    items: dict[str, tuple[Case, Candidate]] = {}
    for number, (name, made) in enumerate(CANDIDATES.items()):
        case = resolve_case({"kernel": kernel, "dims": {"rows": 2, "cols": columns(kernel, number)}})
        items |= legal(case, {f"{name} at {case.dims['cols']}": made})
    assert {case.dims["cols"] for case, _ in items.values()} == {RAGGED, *COLUMNS}
    assert len(items) > 0.75 * len(CANDIDATES)
    for label, result in build(builder, items).items():
        assert result.artifact is not None, (label, result.rejection)
        for rows in ROWS:
            assert check(result.artifact, at_rows(items[label][0], rows), f"{label} rows={rows}")


X: dict[str, Any] = {"axes": ["row", "col"], "role": "input", "dtype": "float32"}
Y: dict[str, Any] = {"axes": ["row", "col"], "role": "output", "like": "x"}
AXES: dict[str, Any] = {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}}


def program(body: list[Any], **more: Any) -> dict[str, Any]:
    base = {"name": "probe", "dims": ["rows", "cols"], "axes": AXES, "tensors": {"x": X, "y": Y}, "body": body}
    return {**base, **more}


def store(value: str, **more: Any) -> dict[str, Any]:
    return {"store": {"tensor": "y", "over": ["col"], "value": value, **more}}


PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    # What TileLang's simplifier would get wrong if it could see it.
    "rounds": (program([store("(x + 1e8) - 1e8")]), {"cols": 33}),
    "cancels": (program([store("(x - x) + (x * 0) + (x / x)")]), {"cols": 33}),
    "negated comparison": (program([store("select(not (x < 0.5), 1.0, x)")]), {"cols": 33}),
    "constants": (program([store("x * 0.1 + 16777217.0 + 1e-42 * x + 3.4028234e38 * 0.0")]), {"cols": 20}),
    "functions": (
        program(
            [store("tanh(x) + erf(x) * sigmoid(x) + exp(-abs(x)) + log(abs(x) + 1) + sqrt(abs(x)) + rsqrt(x * x + 1)")]
        ),
        {"cols": 70},
    ),
    "log alone": (program([store("log(x)")]), {"cols": 70}),
    "exp alone": (program([store("exp(x)")]), {"cols": 70}),
    "tanh alone": (program([store("tanh(x)")]), {"cols": 70}),
    "erf alone": (program([store("erf(x)")]), {"cols": 70}),
    "min and max": (
        program([store("min(max(x, -1.0), 1.0) + max(x, cast(index(col), float32) / cols)")]),
        {"cols": 41},
    ),
    "index": (program([store("cast(index(col) * 2 + index(row), float32) - x")]), {"cols": 37}),
    "where and seed": (
        program(
            [
                {"reducer": {"name": "r", "op": "sum", "seed": "2.5"}},
                {"update": {"reducer": "r", "over": ["col"], "value": "x", "where": "index(col) < 5 or x > 1.0"}},
                {"update": {"reducer": "r", "over": [], "value": "0.25"}},
                {"finalize": {"reducer": "r", "into": "total"}},
                store("x + total"),
            ]
        ),
        {"cols": 45},
    ),
    "other reductions": (
        program(
            [
                {"reduce": {"into": "low", "op": "min", "over": ["col"], "value": "x"}},
                {"reduce": {"into": "prod", "op": "product", "over": ["col"], "value": "1 + x * 0.001"}},
                store("x * prod - low"),
            ]
        ),
        {"cols": 29},
    ),
    "integer reductions": (
        program(
            [
                {"reducer": {"name": "m", "op": "max", "dtype": "int32"}},
                {"update": {"reducer": "m", "over": ["col"], "value": "index(col) * 3", "where": "x < 0.0"}},
                {"finalize": {"reducer": "m", "into": "last"}},
                {"reducer": {"name": "b", "op": "xor", "dtype": "int32"}},
                {"update": {"reducer": "b", "over": ["col"], "value": "index(col) + 1"}},
                {"finalize": {"reducer": "b", "into": "bits"}},
                store("x + cast(max(last, -7), float32) + cast(bits, float32)"),
            ]
        ),
        {"cols": 27},
    ),
    "halves": (
        program(
            [
                {"let": {"name": "two", "value": "2.0"}},
                {"store": {"tensor": "y", "over": ["col"], "value": "x[col] * two + x[col + half]"}},
            ],
            dims=["rows", "cols", "half", "wide"],
            axes={**AXES, "all": {"dim": "wide", "kind": "column"}},
            tensors={"x": {**X, "axes": ["row", "all"]}, "y": Y},
        ),
        {"cols": 19, "half": 19, "wide": 38},
    ),
    "two axes": (
        program(
            [
                {"reduce": {"into": "total", "op": "sum", "over": ["a", "b"], "value": "x * scale"}},
                {"tile": {"name": "t", "over": ["a", "b"], "value": "x - total + cast(index(a), float32)"}},
                {"reduce": {"into": "peak", "op": "max", "over": ["a", "b"], "value": "t"}},
                {"store": {"tensor": "y", "over": ["a", "b"], "value": "t * bias + peak * gain"}},
                {"store": {"tensor": "z", "over": [], "value": "peak - gain"}},
            ],
            dims=["rows", "m", "n"],
            axes={
                "row": {"dim": "rows", "kind": "row"},
                "a": {"dim": "m", "kind": "column"},
                "b": {"dim": "n", "kind": "column"},
            },
            tensors={
                "x": {"axes": ["row", "a", "b"], "role": "input", "dtype": "float32"},
                "scale": {"axes": ["a", "b"], "role": "input", "dtype": "float32"},
                "bias": {"axes": ["b"], "role": "input", "dtype": "float32"},
                "gain": {"axes": ["row"], "role": "input", "dtype": "float32"},
                "y": {"axes": ["row", "a", "b"], "role": "output", "like": "x"},
                "z": {"axes": ["row"], "role": "output", "like": "x"},
            },
        ),
        {"m": 5, "n": 9},
    ),
    "stores and accumulates in one loop": (
        program(
            [
                store("x * 2"),
                {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
                {"store": {"tensor": "s", "over": [], "value": "total"}},
            ],
            tensors={"x": X, "y": Y, "s": {"axes": ["row"], "role": "output", "like": "x"}},
        ),
        {"cols": 76},
    ),
    "rows last": (
        program(
            [{"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}}, store("x / total")],
            tensors={"x": {**X, "axes": ["col", "row"]}, "y": {**Y, "axes": ["col", "row"]}},
        ),
        {"cols": 23},
    ),
}
PROBES = (
    "w16",
    "w32-main",
    "v2-p2-u4",
    "rb2",
    "whole-simd",
    "quarter-v2-p2-rb2",
    "stream-v2",
    "stream-half",
    "stream-whole-v16-rb2",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_no_library_kernel_resembles(builder: Builder, name: str) -> None:
    document, dims = PROGRAMS[name]
    case = resolve_case({"program": document, "dims": {"rows": 3, **dims}})
    items = legal(case, {probe: CANDIDATES[probe] for probe in PROBES})
    assert len(items) >= 4
    for label, result in build(builder, items).items():
        assert result.artifact is not None, (name, label, result.rejection)
        for rows in (1, 19):
            assert check(result.artifact, at_rows(case, rows), f"{name} {label} rows={rows}")


def test_streaming_a_pass_shorter_than_a_line_is_the_same_machine_code(builder: Builder) -> None:
    case = resolve_case({"kernel": "rms_norm", "dims": {"rows": 2, "cols": 256}})
    items = {
        f"{lanes} {nontemporal}": (case, candidate(32, lanes=lanes, nontemporal=nontemporal))
        for lanes in (8, 16)
        for nontemporal in (False, True)
    }
    code = {
        label: result.artifact and result.artifact.artifact_sha256 for label, result in build(builder, items).items()
    }
    assert code["8 True"] == code["8 False"]
    assert code["16 True"] != code["16 False"]
    assert None not in code.values()

"""The acceptance list of the RFC "Redesign reducers as ownership-safe deferred reductions", item by item.

Read it beside /work/shared/seeds/deferred-reducers-rfc.txt: the headings are the RFC's, and each item is a test of that
name. Programs are compiled once, all together, for packets narrower, wider and no divisor of what they reduce. Inputs
are small whole numbers, so a sum is exact in any order: a contribution that is lost or counted twice always shows.

Where the RFC speaks of threads, a CPU has lanes: a packet is ``width`` lanes, ``local_lanes`` of them share one row and
combine in the collective, each lane keeps ``partials`` accumulators, and ``vector`` elements are taken at a time.

Not applicable here, and why:

- *CUDA and ROCm implementations*: this backend emits C. What is checked is that the meaning does not depend on lanes.
- *Partial or offset consumer ranges under warp specialization*, *barrier participant count*: a packet has no
  specialised lanes and no barriers; all its lanes take part in every collective, whatever ``local_lanes`` is.
- *Pipelined iterations*: a serial ``loop`` is what streams; there is no asynchronous copy to overlap with.
- *Canonicalization of* ``acc[i] += value``, ``replication=``, ``T.fill`` *of the identity*: there was no such surface.
  An update is a statement of its own, partials start from the identity, and nobody chooses where they live.
- *Reading a finalized reducer in place*: a finalize always writes to a name of its own (ADR 6, question 1).
"""

from __future__ import annotations

import copy
import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from search.errors import InvalidInput
from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.lowering.cpu.emit import emit
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.document import parse_program
from search.program.resolve import resolve_case
from search.program.verify import verify
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain

Arrays = dict[str, np.ndarray]
ROWS = 5
"""No multiple of what a packet holds."""


# --- writing programs --------------------------------------------------------------------------------------------


def opened(name: str, op: str = "sum", **more: Any) -> dict[str, Any]:
    return {"reducer": {"name": name, "op": op, **more}}


def update(reducer: str, over: str, value: str, **more: Any) -> dict[str, Any]:
    return {"update": {"reducer": reducer, "over": over.split(), "value": value, **more}}


def finalize(reducer: str, into: str) -> dict[str, Any]:
    return {"finalize": {"reducer": reducer, "into": into}}


def store(tensor: str, over: str, value: str) -> dict[str, Any]:
    return {"store": {"tensor": tensor, "over": over.split(), "value": value}}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A program, what it computes, and the candidates that it is compiled for."""

    document: dict[str, Any]
    dims: dict[str, int]
    expected: Callable[[Arrays], Arrays]
    candidates: tuple[str, ...]

    @property
    def case(self) -> Case:
        return resolve_case({"program": self.document, "dims": self.dims})


def probe(
    body: list[dict[str, Any]],
    tensors: str,
    expected: Callable[[Arrays], Arrays],
    candidates: str = "wide split",
    rows: int = ROWS,
    params: Mapping[str, int] | None = None,
    **extents: int,
) -> Probe:
    """``tensors``: ``"A:row,i,j x:j > y:row,i"``; ``extents``: axis to extent."""
    inputs, _, outputs = tensors.partition(">")
    declared: dict[str, Any] = {}
    for role, words in (("input", inputs), ("output", outputs)):
        for word in words.split():
            name, _, axes = word.partition(":")
            declared[name] = {"axes": axes.split(","), "role": role}
    document = {
        "name": "probe",
        "params": dict(params or {}),
        "dims": ["rows", *(f"d{axis}" for axis in extents)],
        "axes": {
            "row": {"dim": "rows", "kind": "row"},
            **{axis: {"dim": f"d{axis}", "kind": "column"} for axis in extents},
        },
        "tensors": declared,
        "body": body,
    }
    dims = {"rows": rows, **{f"d{axis}": extent for axis, extent in extents.items()}}
    return Probe(document=document, dims=dims, expected=expected, candidates=tuple(candidates.split()))


def candidate(width: int, lanes: int, **knobs: Any) -> Candidate:
    mapping = CpuMapping(local_lanes=lanes, row_block=knobs.pop("row_block", 1), simd_scope=knobs.pop("simd", "all"))
    plain = {"vector": 1, "unroll": 1, "partials": 1, "input": "reload", "fusion": "separate", "materialize": "private"}
    return Candidate(width=width, mapping=mapping, **{**plain, **knobs})


CANDIDATES = {
    "narrow": candidate(8, 8, simd="none"),
    "wide": candidate(128, 128),
    "split": candidate(16, 4, partials=2),
    "blocked": candidate(16, 4, partials=2, vector=2, row_block=2),
    "alone": candidate(16, 1, partials=4),
    "hinted": candidate(32, 32, partials=4, vector=16, unroll=8, simd="main", input="cache"),
}
"""Full packets narrower and wider than the data, 4 lanes of 16 to a row (also with two rows to a lane), one lane to a
row, every hint at once."""


# --- the programs --------------------------------------------------------------------------------------------------


def stacked(op: np.ufunc, terms: np.ndarray, axis: int | tuple[int, ...] = -1) -> np.ndarray:
    return op.reduce(terms, axis=axis)


GEMV = [opened("acc", shape=["i"]), update("acc", "i j", "A * x", index=["index(i)"]), finalize("acc", "dot")]
STREAMED = [
    opened("acc", shape=["i"]),
    {
        "loop": {
            "count": "tiles",
            "index": "t",
            "body": [update("acc", "i k", "A[i, t, k] * x[t, k]", index=["index(i)"])],
        }
    },
    finalize("acc", "dot"),
    store("y", "i", "dot"),
]
OPS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def every_op(values: Arrays) -> Arrays:
    return {f"{name}s": stacked(op, values["x"]) for name, op in OPS.items()}


def every_op_of_arrays(values: Arrays) -> Arrays:
    return {f"{name}s": stacked(op, values["A"]) for name, op in OPS.items()}


def bits(values: Arrays) -> Arrays:
    held = values["x"].astype(np.int32)
    found = {"some": np.bitwise_or, "all": np.bitwise_and, "odd": np.bitwise_xor}
    return {name: stacked(op, held).astype(np.float64) for name, op in found.items()}


def scalar_gemv(rows: int) -> list[dict[str, Any]]:
    """One scalar reducer for each of ``rows`` results of the GEMV."""
    body = []
    for place in range(rows):
        body += [
            opened(f"acc{place}"),
            update(f"acc{place}", "j", f"A[{place}, j] * x"),
            finalize(f"acc{place}", f"y{place}"),
        ]
    return body + [store(f"z{place}", "", f"y{place}") for place in range(rows)]


PROBES: dict[str, Probe] = {
    "eight": probe(
        [opened("total"), update("total", "j", "x"), finalize("total", "sum"), store("y", "", "sum")],
        "x:row,j > y:row",
        lambda v: {"y": v["x"].sum(-1)},
        "narrow wide split hinted",
        rows=1,
        j=8,
    ),
    **{
        f"gemv {columns}": probe(
            [*GEMV, store("y", "i", "dot")],
            "A:row,i,j x:j > y:row,i",
            lambda v: {"y": (v["A"] * v["x"]).sum(-1)},
            {1: "narrow", 33: "wide", 101: "wide split"}[columns],
            i=7,
            j=columns,
        )
        for columns in (1, 33, 101)
    },
    "sites of 8 and 16": probe(
        [
            opened("acc"),
            update("acc", "j", "a"),
            update("acc", "k", "b"),
            finalize("acc", "sum"),
            store("y", "", "sum"),
        ],
        "a:row,j b:row,k > y:row",
        lambda v: {"y": v["a"].sum(-1) + v["b"].sum(-1)},
        "narrow wide blocked hinted",
        j=8,
        k=16,
    ),
    "compatible sites": probe(
        [
            opened("acc"),
            update("acc", "j", "a"),
            update("acc", "j", "b * 2.0"),
            update("acc", "", "100.0"),
            finalize("acc", "sum"),
            store("y", "", "sum"),
        ],
        "a:row,j b:row,j > y:row",
        lambda v: {"y": v["a"].sum(-1) + 2 * v["b"].sum(-1) + 100},
        j=37,
    ),
    "write beside update": probe(
        [
            opened("acc"),
            {"tile": {"name": "kept", "over": ["j"], "value": "x * 2.0"}},
            update("acc", "j", "x"),
            store("copy", "j", "x + 1.0"),
            finalize("acc", "sum"),
            store("y", "j", "kept + sum"),
        ],
        "x:row,j > copy:row,j y:row,j",
        lambda v: {"copy": v["x"] + 1, "y": 2 * v["x"] + v["x"].sum(-1, keepdims=True)},
        "narrow wide split hinted",
        j=11,
    ),
    "predicated": probe(
        [
            opened("acc"),
            update("acc", "j", "x", where="x > 0.0 and index(j) >= 3"),
            update("acc", "j", "x", where="index(j) == 5"),
            opened("low", "min"),
            update("low", "j", "x", where="x > 1000.0"),
            finalize("acc", "sum"),
            finalize("low", "lowest"),
            store("y", "", "sum"),
            store("z", "", "lowest"),
        ],
        "x:row,j > y:row z:row",
        lambda v: {
            "y": np.where((v["x"] > 0) & (np.arange(29) >= 3), v["x"], 0).sum(-1) + v["x"][:, 5],
            "z": np.full(ROWS, np.inf),
        },
        j=29,
    ),
    "streamed": probe(
        STREAMED,
        "A:row,i,s,k x:s,k > y:row,i",
        lambda v: {"y": (v["A"] * v["x"]).sum((-1, -2))},
        "wide split alone",
        params={"tiles": 6},
        i=3,
        s=6,
        k=21,
    ),
    "no trips": probe(
        STREAMED,
        "A:row,i,s,k x:s,k > y:row,i",
        lambda v: {"y": np.zeros((ROWS, 3))},
        "narrow",
        params={"tiles": 0},
        i=3,
        s=6,
        k=21,
    ),
    "every op": probe(
        [
            step
            for op in OPS
            for step in (opened(f"{op}_r", op), update(f"{op}_r", "j", "x"), finalize(f"{op}_r", f"{op}_v"))
        ]
        + [store(f"{op}s", "", f"{op}_v") for op in OPS],
        "x:row,j > sums:row maxs:row mins:row products:row",
        every_op,
        j=9,
    ),
    "every op of arrays": probe(
        [
            step
            for op in OPS
            for step in (
                opened(f"{op}_r", op, shape=["i"]),
                update(f"{op}_r", "i j", "A", index=["index(i)"]),
                finalize(f"{op}_r", f"{op}_v"),
            )
        ]
        + [store(f"{op}s", "i", f"{op}_v") for op in OPS],
        "A:row,i,j > sums:row,i maxs:row,i mins:row,i products:row,i",
        every_op_of_arrays,
        i=3,
        j=9,
    ),
    "bitwise": probe(
        [
            step
            for op, into in (("or", "some"), ("and", "all"), ("xor", "odd"))
            for step in (
                opened(f"{into}_r", op, dtype="int32"),
                update(f"{into}_r", "j", "cast(x, int32)"),
                finalize(f"{into}_r", f"{into}_v"),
                store(into, "", f"cast({into}_v, float32)"),
            )
        ],
        "x:row,j > some:row all:row odd:row",
        bits,
        "split",
        j=13,
    ),
    "batched": probe([*GEMV, store("y", "i", "dot")], "A:row,i,j x:j > y:row,i", lambda v: {}, i=4, j=45),
    "scalars": probe(scalar_gemv(4), "A:row,i,j x:j > z0:row z1:row z2:row z3:row", lambda v: {}, i=4, j=45),
    "seeded": probe(
        [
            opened("acc", seed="1000.0"),
            update("acc", "j", "x"),
            finalize("acc", "sum"),
            opened("top", "max", seed="-7.0"),
            update("top", "j", "x", where="x > 1000.0"),
            finalize("top", "peak"),
            store("y", "", "sum"),
            store("z", "", "peak"),
        ],
        "x:row,j > y:row z:row",
        lambda v: {"y": v["x"].sum(-1) + 1000, "z": np.full(ROWS, -7.0)},
        "wide split alone",
        j=19,
    ),
}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Artifact]:
    """(program, candidate) → compiled kernel, all built together."""
    keys = [(name, label) for name, one in PROBES.items() for label in one.candidates]
    requests = []
    for number, (name, label) in enumerate(keys):
        case, chosen = PROBES[name].case.document(), CANDIDATES[label].document()
        requests.append(BuildRequest(id=str(number), case=case, candidate=chosen))
    builder = Builder(tmp_path_factory.mktemp("store"))
    try:
        results = {one.id: one for one in builder.build(requests, timeout_seconds=300, cancelled=lambda: False)}
    finally:
        builder.release()
    found = {}
    for number, key in enumerate(keys):
        result = results[str(number)]
        assert result.artifact is not None, (key, result.rejection)
        found[key] = result.artifact
    return found


def whole_numbers(case: Case) -> Arrays:
    """Inputs from −4 to 5 without 0, so that a product is exact and no contribution is invisible."""
    made = np.random.default_rng(11)
    out = {}
    for tensor in case.program.tensors:
        if tensor.role == "input":
            drawn = made.integers(-4, 5, case.shape(tensor))
            out[tensor.name] = (drawn + (drawn >= 0)).astype(np.float32)
    return out


def run(artifact: Artifact, case: Case, inputs: Arrays) -> Arrays:
    """One call on outputs that hold NaN."""
    buffers = {name: value.copy() for name, value in inputs.items()}
    for tensor in case.program.tensors:
        if tensor.role == "output":
            buffers[tensor.name] = np.full(case.shape(tensor), np.nan, np.float32)
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    given = [
        ctypes.c_int32(case.rows) if argument.kind == "dim" else ctypes.c_void_p(buffers[argument.name].ctypes.data)
        for argument in artifact.arguments
    ]
    assert function(*given) == 0
    return {tensor.name: buffers[tensor.name] for tensor in case.program.tensors if tensor.role == "output"}


def check(artifacts: Mapping[tuple[str, str], Artifact], name: str) -> None:
    """Every candidate of a program gives exactly what it should."""
    one = PROBES[name]
    inputs = whole_numbers(one.case)
    expected = one.expected({key: value.astype(np.float64) for key, value in inputs.items()})
    for label in one.candidates:
        outputs = run(artifacts[name, label], one.case, inputs)
        assert set(outputs) == set(expected)
        for tensor, values in expected.items():
            np.testing.assert_array_equal(outputs[tensor], values, err_msg=f"{name}, {label}: {tensor}")


# --- Numerical correctness -----------------------------------------------------------------------------------------


def test_sum_of_eight_in_128_lanes_is_36_not_576(artifacts: Any) -> None:
    case = PROBES["eight"].case
    for label in PROBES["eight"].candidates:
        x = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
        assert run(artifacts["eight", label], case, {"x": x})["y"].tolist() == [36.0], label


@pytest.mark.parametrize("columns", [1, 33, 101])
def test_gemv_tile_widths_that_do_not_divide_are_correct(artifacts: Any, columns: int) -> None:
    check(artifacts, f"gemv {columns}")


def test_two_update_sites_with_incompatible_group_widths_8_and_16(artifacts: Any) -> None:
    check(artifacts, "sites of 8 and 16")


def test_multiple_compatible_update_sites_remain_correct(artifacts: Any) -> None:
    check(artifacts, "compatible sites")


def test_a_loop_with_a_replicated_write_and_an_update_writes_all_and_counts_once(artifacts: Any) -> None:
    check(artifacts, "write beside update")


def test_predicated_updates_count_exactly_the_enabled_contributions(artifacts: Any) -> None:
    check(artifacts, "predicated")


def test_streaming_gemv_performs_one_final_collective_and_matches_the_reference(artifacts: Any) -> None:
    check(artifacts, "streamed")
    for label in PROBES["streamed"].candidates:
        text = emitted("streamed", label)
        assert len(collectives(text)) == 1, label
        loop = next(line for line in text.splitlines() if re.match(r" *for \w+ in T\.serial\(6\):", line))
        assert text.index(loop) < text.index(collectives(text)[0]), "the collective follows the tiles"


def test_streaming_over_no_tiles_is_the_identity(artifacts: Any) -> None:
    check(artifacts, "no trips")


@pytest.mark.parametrize("name", ["every op", "every op of arrays", "bitwise"])
def test_every_op_across_scalar_and_multi_element_reducer_shapes(artifacts: Any, name: str) -> None:
    check(artifacts, name)


def test_batched_and_scalar_codegen_produce_identical_results_for_every_element(artifacts: Any) -> None:
    inputs = whole_numbers(PROBES["batched"].case)
    exact = (inputs["A"].astype(np.float64) * inputs["x"]).sum(-1)
    for label in PROBES["batched"].candidates:
        batched = run(artifacts["batched", label], PROBES["batched"].case, inputs)["y"]
        scalar = run(artifacts["scalars", label], PROBES["scalars"].case, inputs)
        for place in range(4):
            np.testing.assert_array_equal(batched[:, place], scalar[f"z{place}"], err_msg=f"{label}: element {place}")
        np.testing.assert_array_equal(batched, exact)


def test_a_seed_is_combined_exactly_once(artifacts: Any) -> None:
    """ "Identity versus seed": whatever the number of partials."""
    check(artifacts, "seeded")


# --- Participant domains -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["narrow", "wide"])
def test_full_packet(artifacts: Any, label: str) -> None:
    assert CANDIDATES[label].width == CANDIDATES[label].mapping.local_lanes
    assert ("sites of 8 and 16", label) in artifacts


def test_groups_of_lanes_within_a_packet_reduce_their_own_rows(artifacts: Any) -> None:
    """The nearest to "warp-only" and "cross-warp": 4 rows to a packet, 4 lanes each, two packets' rows interleaved."""
    one = PROBES["sites of 8 and 16"]
    blocked = CANDIDATES["blocked"].mapping
    assert (blocked.local_lanes, blocked.row_block) == (4, 2)
    inputs = {name: np.zeros_like(value) for name, value in whole_numbers(one.case).items()}
    for row in range(ROWS):
        inputs["a"][row] = 10.0**row  # a lane of another row would show in another digit
    outputs = run(artifacts["sites of 8 and 16", "blocked"], one.case, inputs)
    assert outputs["y"].tolist() == [8.0 * 10**row for row in range(ROWS)]


# --- Diagnostics ---------------------------------------------------------------------------------------------------


BASE: dict[str, Any] = {
    "name": "wrong",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row", "col"], "role": "output"}},
}
OPEN, UPDATE, CLOSE = opened("acc"), update("acc", "col", "x"), finalize("acc", "total")
STORE = store("y", "col", "x / total")
ARRAY = opened("acc", shape=["col"])
PLACED = update("acc", "col", "x", index=["index(col)"])

DIAGNOSTICS: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    "read before finalize": (
        [OPEN, UPDATE, {"let": {"name": "early", "value": "acc"}}, CLOSE, STORE],
        "/2/let/value",
        "'acc'",
        "read before its finalize",
    ),
    "read before finalize, in a tile": (
        [OPEN, UPDATE, {"tile": {"name": "t", "over": ["col"], "value": "x - acc"}}, CLOSE, STORE],
        "/2/tile/value",
        "'acc'",
        "read before its finalize",
    ),
    "read of the reducer itself after finalize": (
        [OPEN, UPDATE, CLOSE, store("y", "col", "x / acc + total")],
        "/3/store/value",
        "read its result 'total'",
        "never readable",
    ),
    "read of an element before finalize": (
        [ARRAY, PLACED, {"let": {"name": "early", "value": "acc[0]"}}, CLOSE, STORE],
        "/2/let/value",
        "'acc'",
        "not a tensor",
    ),
    "update after finalize": (
        [OPEN, UPDATE, CLOSE, UPDATE, STORE],
        "/3/update/reducer",
        "'acc'",
        "open another reducer",
    ),
    "update after finalize, in a loop": (
        [OPEN, UPDATE, CLOSE, {"loop": {"count": "cols", "body": [UPDATE]}}, STORE],
        "/3/loop/body/0/update/reducer",
        "'acc'",
        "open another reducer",
    ),
    "update before the reducer": (
        [UPDATE, OPEN, CLOSE, STORE],
        "/0/update/reducer",
        "'acc'",
        "not a reducer opened before",
    ),
    "missing finalize": (
        [{"let": {"name": "total", "value": "1.0"}}, OPEN, UPDATE, STORE],
        "/1/reducer",
        "'acc'",
        "never finalized",
    ),
    "double finalize": (
        [OPEN, UPDATE, CLOSE, finalize("acc", "again"), STORE],
        "/3/finalize/reducer",
        "'acc'",
        "remove the second finalize",
    ),
    "two epochs of one reducer": (
        [OPEN, UPDATE, CLOSE, OPEN, UPDATE, finalize("acc", "more"), STORE],
        "/3/reducer/name",
        "'acc'",
        "contributions go through update",
    ),
    "finalize without an update": (
        [OPEN, CLOSE, store("y", "col", "x / total")],
        "/0/reducer",
        "'acc'",
        "never updated",
    ),
    "arbitrary store": (
        [OPEN, UPDATE, store("acc", "", "1.0"), CLOSE, STORE],
        "/2/store/tensor",
        "'acc'",
        "use update",
    ),
    "assignment": (
        [OPEN, UPDATE, {"let": {"name": "acc", "value": "1.0"}}, CLOSE, STORE],
        "/2/let/name",
        "'acc'",
        "contributions go through update",
    ),
    "assignment of a tile": (
        [OPEN, UPDATE, {"tile": {"name": "acc", "over": ["col"], "value": "x"}}, CLOSE, STORE],
        "/2/tile/name",
        "'acc'",
        "contributions go through update",
    ),
    "op-mismatched update": (
        [OPEN, update("acc", "col", "x", op="max"), CLOSE, STORE],
        "/1/update/op",
        "op",
        "open another reducer",
    ),
    "op-mismatched dtype": ([opened("acc", "or"), UPDATE, CLOSE, STORE], "/0/reducer/dtype", "'or'", "int32 reducer"),
    "a sum that reads itself": (
        [OPEN, update("acc", "col", "acc + x"), CLOSE, STORE],
        "/1/update/value",
        "'acc'",
        "read before its finalize",
    ),
    "unsupported non-associative op": (
        [opened("acc", "subtract"), UPDATE, CLOSE, STORE],
        "/0/reducer/op",
        "'subtract'",
        "not associative",
    ),
    "non-uniform finalize": (
        [OPEN, UPDATE, {"finalize": {"reducer": "acc", "into": "total", "where": "x > 0.0"}}, STORE],
        "/2/finalize/where",
        "'where'",
        "put it on the update",
    ),
    "finalize per element": (
        [OPEN, UPDATE, {"finalize": {"reducer": "acc", "into": "total", "over": ["col"]}}, STORE],
        "/2/finalize/over",
        "'over'",
        "one collective for all lanes",
    ),
    "finalize in a loop": (
        [OPEN, {"loop": {"count": "cols", "body": [UPDATE, CLOSE]}}, STORE],
        "/1/loop/body/1/finalize",
        "finalize",
        "the rest outside",
    ),
    "invalid index: missing": (
        [ARRAY, UPDATE, CLOSE, STORE],
        "/1/update/index",
        "'acc'",
        "give one index expression for each",
    ),
    "invalid index: of a scalar": (
        [OPEN, PLACED, CLOSE, STORE],
        "/1/update/index",
        "'acc'",
        "give one index expression for each",
    ),
    "invalid index: no integer": (
        [ARRAY, update("acc", "col", "x", index=["x"]), CLOSE, STORE],
        "/1/update/index/0",
        "float32",
        "an index is int32",
    ),
    "invalid dtype: integers": (
        [OPEN, update("acc", "col", "index(col)"), CLOSE, STORE],
        "/1/update/value",
        "holds float32, the value is int32",
        "use cast",
    ),
    "invalid dtype: conditions": (
        [OPEN, update("acc", "col", "x > 0.0"), CLOSE, STORE],
        "/1/update/value",
        "the value is bool",
        "use cast or select",
    ),
    "invalid dtype: a number as a condition": (
        [OPEN, update("acc", "col", "x", where="x"), CLOSE, STORE],
        "/1/update/where",
        "'where'",
        "compare it with something",
    ),
    "invalid shape": (
        [opened("acc", shape=["row"]), PLACED, CLOSE, STORE],
        "/0/reducer/shape/0",
        "'row'",
        "not a column axis or a dim",
    ),
    "escape into another reducer": (
        [
            OPEN,
            UPDATE,
            opened("other"),
            update("other", "col", "acc"),
            CLOSE,
            finalize("other", "more"),
            store("y", "col", "x * total + more"),
        ],
        "/3/update/value",
        "'acc'",
        "partials are not readable",
    ),
    "escape into a condition": (
        [
            OPEN,
            UPDATE,
            opened("other"),
            update("other", "col", "x", where="acc > 0.0"),
            CLOSE,
            finalize("other", "more"),
            store("y", "col", "x * total + more"),
        ],
        "/3/update/where",
        "'acc'",
        "partials are not readable",
    ),
    "escape into a seed": (
        [
            OPEN,
            UPDATE,
            opened("other", seed="acc"),
            update("other", "col", "x"),
            CLOSE,
            finalize("other", "more"),
            store("y", "col", "x * total + more"),
        ],
        "/2/reducer/seed",
        "'acc'",
        "partials are not readable",
    ),
    "alias under another name": (
        [OPEN, UPDATE, {"let": {"name": "alias", "value": "acc"}}, CLOSE, STORE],
        "/2/let/value",
        "'acc'",
        "partials are not readable",
    ),
}


def problems(body: list[dict[str, Any]], dims: Mapping[str, int] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as refused:
        resolve_case({"program": BASE | {"body": copy.deepcopy(body)}, "dims": dims or {"rows": 2, "cols": 9}})
    return [(problem.field, problem.message) for problem in refused.value.problems]


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_diagnostic(name: str) -> None:
    """A JSON pointer to the statement, the name that is misused, and what to do instead."""
    body, pointer, named, fix = DIAGNOSTICS[name]
    found = problems(body)
    assert any(
        field == f"/program/body{pointer}" and named in message and fix in message for field, message in found
    ), found


def test_diagnostic_invalid_index_out_of_bounds() -> None:
    """Judged at the dims of the case, so it is told with them."""
    [(field, message)] = problems([ARRAY, update("acc", "col", "x", index=["index(col) + 1"]), CLOSE, STORE])
    assert field == "/program/body/1/update/index/0"
    assert "covers 1..9, outside 'acc' along 'col' (0..8)" in message
    assert "clamp it with min and max, or guard it" in message


def test_diagnostic_unsupported_alias_of_a_reducer() -> None:
    document = copy.deepcopy(BASE) | {"body": [OPEN, UPDATE, CLOSE, STORE]}
    document["tensors"]["y"]["aliases"] = "acc"
    [problem] = verify(parse_program(document))
    assert (problem.field, problem.value) == ("/tensors/y/aliases", "acc")


# --- Codegen invariants --------------------------------------------------------------------------------------------


def emitted(name: str, label: str) -> str:
    """The TileLang text of a program for a candidate."""
    schedule = build_schedule(PROBES[name].case, CANDIDATES[label])
    assert isinstance(schedule, Schedule)
    return emit(schedule).tilelang_text


def collectives(text: str) -> list[str]:
    """The lines that begin a collective."""
    return re.findall(r"^ *# \w+: partials and lanes combine.*$", text, re.MULTILINE)


@pytest.mark.parametrize("name", PROBES)
def test_one_final_collective_per_reducer_outside_every_update_predicate(name: str) -> None:
    one = PROBES[name]
    reducers = sum("reducer" in statement for statement in one.document["body"])
    for label in one.candidates:
        text = emitted(name, label)
        found = collectives(text)
        assert len(found) == reducers, (label, found)
        lines = text.splitlines()
        depth = {len(line) - len(line.lstrip()) for line in found}
        body = next(len(line) - len(line.lstrip()) for line in lines if "T.alloc_local" in line)
        assert depth == {body}, f"{label}: a collective stands in a loop or under a condition"


@pytest.mark.parametrize("name", ["eight", "sites of 8 and 16", "write beside update"])
def test_hints_that_do_not_fit_fall_back_without_changing_semantics(artifacts: Any, name: str) -> None:
    """16 elements at a time, 4 partials and 8 unrolled passes of 8 or 11 elements: the same numbers."""
    one = PROBES[name]
    inputs = whole_numbers(one.case)
    hinted, plain = (run(artifacts[name, label], one.case, inputs) for label in ("hinted", "narrow"))
    for tensor, values in plain.items():
        np.testing.assert_array_equal(hinted[tensor], values)


def test_the_number_of_rows_is_independent_of_the_reduction_width(artifacts: Any) -> None:
    """One binary for any number of rows: the last packet's idle lanes contribute to no row."""
    one = PROBES["compatible sites"]
    inputs = whole_numbers(one.case)
    for label in one.candidates:
        for rows in (1, 2, ROWS):
            case = replace(one.case, dims={**one.case.dims, "rows": rows})
            some = {name: value[:rows] for name, value in inputs.items()}
            values = {name: value.astype(np.float64) for name, value in some.items()}
            outputs = run(artifacts["compatible sites", label], case, some)
            np.testing.assert_array_equal(outputs["y"], one.expected(values)["y"], err_msg=f"{label}, {rows} rows")

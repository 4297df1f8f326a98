"""The RFC's acceptance list for reducers on CUDA: the same programs, simulated thread by thread, exactly.

Read it beside ``test_reducers_rfc.py``, whose programs, inputs and expected numbers these are, and whose diagnostics
are of no target. Kernels are TileLang's, its deferred reducers and its collective included; some are lowered once more
under ``tl.reducer_force_baseline``. Inputs are small whole numbers: a contribution that is lost or counted twice shows.

Not applicable: *partial or offset consumer ranges under warp specialization* (no lanes are specialised here), *ROCm*.
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search.errors import InvalidInput
from search.lowering.contract import Argument
from search.lowering.cuda.dialect import CudaKernel
from search.lowering.cuda.mapping import MappingError, check_mapping
from search.measuring.simt.build import build
from search.measuring.simt.native import Launched, Library
from search.measuring.simt.protocol import ORDERS, Order
from search.measuring.simt.source import translate
from search.measuring.simt.toolchain import prepare
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CudaMapping

sys.path.append(str(Path(__file__).parent))
from cuda_lowering import LoweredKernel, lower_beside
from test_reducers_rfc import BASE, PROBES, ROWS, Arrays, finalize, opened, store, update, whole_numbers

pytestmark = pytest.mark.toolchain


def candidate(width: int, rows_per_block: int = 1, min_blocks: int = 0, **knobs: Any) -> Candidate:
    base = {"input": "reload", "fusion": "separate", "materialize": "private", "vector": 1, "unroll": 1, "partials": 1}
    mapping = CudaMapping(rows_per_block=rows_per_block, min_blocks=min_blocks)
    return Candidate(width=width, mapping=mapping, **(base | knobs))


CANDIDATES = {
    "narrow": candidate(8),
    "narrow rows": candidate(8, 4),
    "warp": candidate(32),
    "warp rows": candidate(32, 2),
    "wide": candidate(128),
    "wide rows": candidate(64, 2),
    "hinted": candidate(32, 1, 8, partials=8, unroll=16, input="cache"),
}
"""Lanes of a row below, at and above a warp; alone in a block, and several rows of which the last are not there; more
accumulators, unrolling and blocks than there is anything for."""
Key = tuple[str, str, bool]
"""Program, candidate, whether under the baseline."""
SEVERAL = ("narrow rows", "warp rows", "wide rows")
BASELINE = {
    "eight": "warp",
    "sites of 8 and 16": "wide",
    "write beside update": "wide",
    "predicated": "warp",
    "bitwise": "wide",
    "seeded": "narrow",
}
"""Programs whose reducers are TileLang's deferred ones, each with one candidate."""
MIXED: list[Key] = [("eight", "warp rows", True), ("sites of 8 and 16", "narrow rows", True)]
"""Several rows in a block under the baseline, which combines all threads of a block."""
EVERYTHING = ("eight", "sites of 8 and 16", "write beside update")


def labels(name: str) -> tuple[str, ...]:
    """The candidates of a program in every run: one of those with several rows, and what single tests ask for."""
    if name == "eight":
        return tuple(CANDIDATES)
    if name in ("batched", "scalars"):
        return ("narrow rows", "wide")
    if name in EVERYTHING:
        return ("narrow", "narrow rows", "hinted")
    if name == "compatible sites":
        return SEVERAL
    return ("wide",) if name in ("gemv 33", "gemv 101") else (SEVERAL[list(PROBES).index(name) % len(SEVERAL)],)


USUAL: list[Key] = [
    *((name, label, False) for name in PROBES for label in labels(name)),
    *((name, label, True) for name, label in BASELINE.items()),
    *MIXED,
]

# What TileLang compiles without a word though it cannot mean it (design/5), or fails over with none of use: each as a
# module of its own, then ours, refused with a pointer before anything is emitted.
MODULE = """
import tilelang.language as T

@T.prim_func
def kernel(X: T.Tensor((100,), "{given}"), Y: T.Tensor((8,), "{dtype}")):
    with T.Kernel(1, threads=128) as bx:
        acc = T.alloc_reducer((1,), "{dtype}", op="{op}")
        s = T.alloc_fragment((1,), "{dtype}")
        tx = T.get_thread_binding()
        T.reducer_init(acc)
        {update}
        T.finalize_reducer(acc, s)
        Y[0] = s[0]
"""


def module(update: str, *, op: str = "sum", dtype: str = "float32", given: str = "float32") -> str:
    return MODULE.format(update=update.replace("\n", "\n        "), op=op, dtype=dtype, given=given)


OPEN, CLOSE, STORE = opened("acc"), finalize("acc", "total"), store("y", "col", "x / total")
ONE, ALL = opened("acc", shape=["ones"]), store("y", "col", "x")
SILENT: dict[str, tuple[str, list[dict[str, Any]], str, str]] = {
    "a load past the end, which reads zeros": (
        module("for i in T.Parallel(128):\n    T.reducer_update(acc[0], X[i])", op="max"),
        [opened("acc", "max"), update("acc", "col", "x[row, col + 28]"), CLOSE, STORE],
        "/1/update/value",
        "outside",
    ),
    "an element that is not there, taken for the first": (
        module("for i in T.Parallel(8):\n    T.reducer_update(acc[3], X[i])"),
        [ONE, update("acc", "col", "x", index=["3"]), CLOSE, store("z", "one", "total"), ALL],
        "/1/update/index/0",
        "outside 'acc'",
    ),
    "elements past the shape, written over what lies there": (
        module("for i in T.Parallel(8):\n    T.reducer_update(acc[i], X[i])"),
        [ONE, update("acc", "col", "x", index=["index(col)"]), CLOSE, store("z", "one", "total"), ALL],
        "/1/update/index/0",
        "outside 'acc'",
    ),
    "a float16 that becomes an integer": (
        module("for i in T.Parallel(8):\n    T.reducer_update(acc[0], X[i])", dtype="int32", given="float16"),
        [opened("acc", dtype="int32"), update("acc", "col", "x"), CLOSE, STORE],
        "/1/update/value",
        "use cast",
    ),
    "an epoch that half of the threads take part in": (
        module("if tx < 64:\n    for i in T.Parallel(8):\n        T.reducer_update(acc[0], X[i])"),
        [OPEN, update("acc", "col", "x"), {"finalize": {"reducer": "acc", "into": "total", "where": "x > 0.0"}}, STORE],
        "/2/finalize/where",
        "put it on the update",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Kernels, built; and what TileLang said of the silent ones."""

    kernels: Mapping[Key, LoweredKernel]
    libraries: Mapping[Key, tuple[str, str]]
    """Library and symbol."""
    spoken: Mapping[str, str | None]


def simulate(keys: list[Key], folder: Path, prelude: Path, *, raw: Mapping[str, str]) -> Simulated:
    """Lower and build everything together: TileLang is imported once, kernels share compiler calls."""
    schedules = []
    for name, label, _ in keys:
        schedule = build_schedule(PROBES[name].case, CANDIDATES[label])
        assert isinstance(schedule, Schedule), (name, label, schedule)
        schedules.append(schedule)
    configs = [{"tl.reducer_force_baseline": True} if baseline else {} for *_, baseline in keys]
    kernels, spoken = lower_beside(schedules, list(raw.values()), folder, configs=configs)
    prelude.mkdir(exist_ok=True)
    toolchain, libraries = prepare(prelude), {}
    for start in range(0, len(keys), 15):
        batch = [(f"k_{at}", keys[at], kernels[at]) for at in range(start, min(start + 15, len(keys)))]
        translations = [translate(one.renamed(symbol), symbol, one.arguments) for symbol, _, one in batch]
        built = build(translations, toolchain, folder, timeout_seconds=300, cancelled=lambda: False)
        assert built.rejections == {}
        libraries |= {key: (built.libraries[symbol], symbol) for symbol, key, _ in batch}
    return Simulated(
        kernels=dict(zip(keys, kernels, strict=True)),
        libraries=libraries,
        spoken=dict(zip(raw, spoken, strict=True)),
    )


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    base = tmp_path_factory.getbasetemp()
    prelude = (base.parent if base.name.startswith("popen-") else base) / "simulations"
    raw = {name: text for name, (text, *_) in SILENT.items()}
    return simulate(USUAL, tmp_path_factory.mktemp("rfc"), prelude, raw=raw)


MARGIN, SENTINEL = 64, np.float32(12345.0)


def run(simulated: Simulated, key: Key, order: Order, inputs: Arrays, case: Case) -> tuple[Arrays, Launched]:
    """One run on outputs that hold NaN; what lies around them is as it was."""
    kernel, (path, symbol) = simulated.kernels[key], simulated.libraries[key]
    held: Arrays = {}
    for tensor in case.program.tensors:
        wide = np.full(int(np.prod(case.shape(tensor))) + 2 * MARGIN, SENTINEL, np.float32)
        wide[MARGIN:-MARGIN] = inputs[tensor.name].ravel() if tensor.role == "input" else np.nan
        held[tensor.name] = wide

    def value(argument: Argument) -> tuple[str, int]:
        if argument.kind == "dim":
            return "dim", case.rows
        return "tensor", held[argument.name].ctypes.data + MARGIN * 4

    blocks = -(-case.rows // kernel.launch.rows_per_block)
    library = Library(path)
    try:
        values = [value(argument) for argument in kernel.arguments]
        launched = library.run(symbol, kernel.launch, order, blocks=blocks, values=values, seed=7)
    finally:
        library.close()
    assert launched.kind == 0, (key, order.name, launched.detail)
    for name, wide in held.items():
        assert (wide[:MARGIN] == SENTINEL).all(), (key, order.name, name)
        assert (wide[-MARGIN:] == SENTINEL).all(), (key, order.name, name)
    outputs = [tensor for tensor in case.program.tensors if tensor.role == "output"]
    return {t.name: held[t.name][MARGIN:-MARGIN].reshape(case.shape(t)) for t in outputs}, launched


def outputs_of(simulated: Simulated, key: Key) -> Arrays:
    """What a kernel writes, the same in every order of threads."""
    case = PROBES[key[0]].case
    inputs = whole_numbers(case)
    first, *others = (run(simulated, key, order, inputs, case)[0] for order in ORDERS)
    for other in others:
        for name, values in first.items():
            np.testing.assert_array_equal(other[name], values, err_msg=f"{key}: {name}")
    return first


def check(simulated: Simulated, keys: list[Key]) -> None:
    """Every kernel gives exactly what it should."""
    for key in keys:
        one = PROBES[key[0]]
        expected = one.expected({name: value.astype(np.float64) for name, value in whole_numbers(one.case).items()})
        outputs = outputs_of(simulated, key)
        assert set(outputs) == set(expected) or key[0] in ("batched", "scalars")
        for name, values in expected.items():
            np.testing.assert_array_equal(outputs[name], values, err_msg=f"{key}: {name}")


# --- Numerical correctness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBES)
def test_programs_give_exactly_what_they_should(simulated: Simulated, name: str) -> None:
    check(simulated, [(name, label, False) for label in labels(name)])


@pytest.mark.parametrize("name", BASELINE)
def test_programs_give_the_same_under_the_forced_baseline(simulated: Simulated, name: str) -> None:
    key = (name, BASELINE[name], True)
    assert "tl::AllReduce<tl::" in simulated.kernels[key].body, "a reducer of TileLang's own"
    check(simulated, [key])


@pytest.mark.parametrize("key", MIXED, ids=lambda key: key[1])
def test_a_collective_over_several_rows_is_refused(simulated: Simulated, key: Key) -> None:
    """What combines the threads of a block, whatever rows they work on, is no candidate with several rows in it."""
    name, label, _ = key
    for baseline in (False, True):
        kernel = simulated.kernels[name, label, baseline]
        made = CudaKernel(includes="", body=kernel.body, arguments=kernel.arguments, launch=kernel.launch)
        schedule = build_schedule(PROBES[name].case, CANDIDATES[label])
        assert isinstance(schedule, Schedule)
        with pytest.raises(MappingError, match="not over") if baseline else contextlib.nullcontext():
            check_mapping(made, schedule)


def test_batched_and_scalar_finalize_give_identical_results_for_every_element(simulated: Simulated) -> None:
    inputs = whole_numbers(PROBES["batched"].case)
    exact = (inputs["A"].astype(np.float64) * inputs["x"]).sum(-1)
    for label in labels("batched"):
        batched = outputs_of(simulated, ("batched", label, False))["y"]
        scalar = outputs_of(simulated, ("scalars", label, False))
        for place in range(4):
            np.testing.assert_array_equal(batched[:, place], scalar[f"z{place}"], err_msg=f"{label}: {place}")
        np.testing.assert_array_equal(batched, exact)


# --- Participant domains -------------------------------------------------------------------------------------------


def test_rows_of_a_block_that_are_not_there_contribute_to_none_and_write_nothing(simulated: Simulated) -> None:
    """Five rows in blocks of four and of two; one row in each: all others of the last block are idle."""
    one = PROBES["compatible sites"]
    inputs = whole_numbers(one.case)
    for label in SEVERAL:
        assert CANDIDATES[label].mapping.rows_per_block > 1  # type: ignore[union-attr]
        for rows in (1, ROWS):
            case = resolve_case({"program": one.document, "dims": {**one.dims, "rows": rows}})
            some = {name: value[:rows] for name, value in inputs.items()}
            for order in ORDERS:
                outputs, _ = run(simulated, ("compatible sites", label, False), order, some, case)
                expected = one.expected({name: value.astype(np.float64) for name, value in some.items()})
                np.testing.assert_array_equal(outputs["y"], expected["y"], err_msg=f"{label}, {rows} rows")


def test_lanes_below_at_and_above_a_warp_combine_as_a_warp_or_through_shared_memory(simulated: Simulated) -> None:
    for label, made in CANDIDATES.items():
        body = simulated.kernels["eight", label, False].body
        assert re.search(rf"AllReduce<tl::SumOp, {made.width}, 1|all_reduce<tuner::Sum, {made.width}, ", body), label
        assert ("__shared__" in body) == (made.width > 32), label


# --- Codegen invariants --------------------------------------------------------------------------------------------


def test_participants_of_a_barrier_are_the_block_s_threads_whatever_is_reduced(simulated: Simulated) -> None:
    """64 lanes of two rows: 128 threads come to each barrier, as they do for 128 lanes of one row."""
    for label in ("wide", "wide rows"):
        kernel = simulated.kernels["eight", label, False]
        participants = {int(count) for count in re.findall(r"NamedBarrier<(\d+)", kernel.body)}
        assert participants == {kernel.launch.threads_per_block} == {128}, label
        case = PROBES["eight"].case
        *_, launched = run(simulated, ("eight", label, False), ORDERS[0], whole_numbers(case), case)
        assert launched.barriers > 0, label
    for label in ("narrow", "narrow rows", "warp", "warp rows"):
        case = PROBES["eight"].case
        *_, launched = run(simulated, ("eight", label, False), ORDERS[0], whole_numbers(case), case)
        assert launched.barriers == 0, label


def test_what_is_waited_for_does_not_grow_with_what_is_reduced(simulated: Simulated) -> None:
    """Seven sums of 33 and of 101 elements by 128 lanes: as many barriers, and in the code as many collectives."""
    counted, sites = [], []
    for name in ("gemv 33", "gemv 101"):
        key, case = (name, "wide", False), PROBES[name].case
        *_, launched = run(simulated, key, ORDERS[0], whole_numbers(case), case)
        counted.append(launched.barriers)
        sites.append(len(re.findall(r"\ball_reduce<", simulated.kernels[key].body)))
    assert counted[0] == counted[1] > 0
    assert sites[0] == sites[1] > 0


def enclosing(body: str, at: int) -> list[str]:
    """The heads of the blocks around a place in C text."""
    heads: list[str] = []
    for found in re.finditer(r"[{}]", body[:at]):
        if found[0] == "{":
            start = max(body.rfind(mark, 0, found.start()) for mark in ";{}")
            heads.append(body[start + 1 : found.start()].strip())
        else:
            heads.pop()
    return heads


def test_collectives_stand_outside_of_every_condition(simulated: Simulated) -> None:
    seen = 0
    for key, kernel in simulated.kernels.items():
        for found in re.finditer(r"\b(?:AllReduce<|all_reduce<|__syncthreads|reduce_\w+<)", kernel.body):
            heads = enclosing(kernel.body, found.start())
            assert not any(re.match(r"(?:else\s*)?\bif\b|else", head) for head in heads), (key, heads)
            seen += 1
    assert seen >= len(simulated.kernels)


def test_hints_that_do_not_fit_fall_back_without_changing_semantics(simulated: Simulated) -> None:
    """8 accumulators, 16 unrolled passes and 8 blocks for one pass of 8 or 11 elements: the same numbers."""
    for name in EVERYTHING:
        hinted, plain = (outputs_of(simulated, (name, label, False)) for label in ("hinted", "narrow"))
        for tensor, values in plain.items():
            np.testing.assert_array_equal(hinted[tensor], values, err_msg=name)


# --- Diagnostics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SILENT)
def test_our_verifier_speaks_where_tilelang_is_silent(simulated: Simulated, name: str) -> None:
    _, body, pointer, words = SILENT[name]
    assert simulated.spoken[name] is None, "TileLang refuses it by now"
    document = copy.deepcopy(BASE) | {"body": copy.deepcopy(body)}
    dims = {"rows": 2, "cols": 100}
    if ONE in body:
        dims["ones"] = 1
        document["dims"] = list(dims)
        document["axes"]["one"] = {"dim": "ones", "kind": "column"}
        document["tensors"]["z"] = {"axes": ["row", "one"], "role": "output"}
    with pytest.raises(InvalidInput) as refused:
        resolve_case({"program": document, "dims": dims})
    told = [(problem.field, problem.message) for problem in refused.value.problems]
    assert any(field == f"/program/body{pointer}" and words in message for field, message in told), told


@pytest.mark.full
def test_every_program_with_every_candidate_and_both_ways(tmp_path: Path) -> None:
    keys: list[Key] = [(name, label, False) for name in PROBES for label in CANDIDATES]
    keys += [(name, label, True) for name in BASELINE for label in CANDIDATES if label not in SEVERAL]
    check(simulate(keys, tmp_path, tmp_path / "simulations", raw={}), keys)

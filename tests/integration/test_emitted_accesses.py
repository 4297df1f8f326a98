"""The planner's accounting is what the emitted C does, where W·V divides N: loads and stores, counted as the C runs."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from emitted_accesses import Accesses, CountedKernels, total

from search.lowering.cpu.emit import emit
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.demand import STORED_BYTES
from search.planning.plan import Plan, plan_of
from search.planning.schedule import DistributedLoop, Schedule
from search.program.case import Case
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping
from search.space.uses import column_axes

pytestmark = pytest.mark.toolchain
RANDOM_PROGRAMS = 24
"""Programs of the small generator below, each under one candidate drawn for it."""
PACKETS = 2
"""Packets of rows that run: no slot hangs over the last row, where a clamped one reads but does not count."""


def random_program(draw: random.Random) -> dict[str, Any]:
    """A legal program over one column axis in which every name is used."""
    elements, tiles, scalars = ["x", "r", "w"], [], ["b"]
    body: list[dict[str, Any]] = []

    def value() -> str:
        parts = draw.choices([*elements, *tiles, *scalars], k=draw.randint(1, 3))
        parts.append(draw.choice(["x", "r * x", "cast(index(col), float32)", "select(r > b, x, w)", *tiles]))
        return f" {draw.choice(['+', '-', '*'])} ".join(parts)

    outputs = {"y"}
    for number in range(draw.randint(2, 5)):
        kind = draw.choice(["reduce", "reduce", "tile", "tile", "predicated", "store", "stage"])
        if kind == "reduce":
            op = draw.choice(["sum", "max", "min"])
            body.append({"reduce": {"into": f"q{number}", "op": op, "over": ["col"], "value": value()}})
            scalars.append(f"q{number}")
        elif kind == "tile":
            body.append({"tile": {"name": f"t{number}", "over": ["col"], "value": value()}})
            tiles.append(f"t{number}")
        elif kind == "predicated":
            body.append({"reducer": {"name": f"a{number}", "op": "sum", "seed": draw.choice(scalars)}})
            body.append({"update": {"reducer": f"a{number}", "over": ["col"], "value": value(), "where": "x < r"}})
            body.append({"finalize": {"reducer": f"a{number}", "into": f"f{number}"}})
            scalars.append(f"f{number}")
        elif kind == "stage":
            body.append({"stage": {}})
        elif "z" not in outputs:
            outputs.add("z")
            body.append({"store": {"tensor": "z", "over": ["col"], "value": value()}})
    body.append({"store": {"tensor": "y", "over": ["col"], "value": " + ".join([*elements, *tiles])}})
    body.append({"store": {"tensor": "s", "over": [], "value": " + ".join(scalars)}})
    return document(body, {"x": "rc", "r": "rc", "w": "c", "b": "r"}, dict.fromkeys(sorted(outputs), "rc") | {"s": "r"})


AXES = {"r": "row", "c": "col", "k": "k"}
DIMS = {"row": "rows", "col": "cols", "k": "ks"}


def document(
    body: list[dict[str, Any]], inputs: dict[str, str], outputs: dict[str, str], *, loops: bool = False
) -> dict[str, Any]:
    """A program's document; tensors are spelled by the initials of their axes; ``loops`` count the dim ``ks``."""
    used = [axis for letter, axis in AXES.items() if any(letter in spelled for spelled in inputs.values())]
    tensors = {name: ("input", spelled) for name, spelled in inputs.items()}
    tensors |= {name: ("output", spelled) for name, spelled in outputs.items()}
    return {
        "name": "counted",
        "dims": [DIMS[axis] for axis in used] + (["ks"] if loops else []),
        "axes": {axis: {"dim": DIMS[axis], "kind": "row" if axis == "row" else "column"} for axis in used},
        "tensors": {
            name: {"axes": [AXES[letter] for letter in spelled], "role": role, "dtype": "float32"}
            for name, (role, spelled) in tensors.items()
        },
        "body": body,
    }


def random_candidate(draw: random.Random, **knobs: Any) -> Candidate:
    width = draw.choice([2, 4, 8, 16])
    fields: dict[str, Any] = {
        "width": width,
        "input": draw.choice(["reload", "cache", "cache"]),
        "fusion": draw.choice(["separate", "fused"]),
        "materialize": draw.choice(["private", "private", "output", "recompute"]),
        "vector": draw.choice([1, 1, 2, 4]),
        "unroll": draw.choice([1, 3]),
        "partials": draw.choice([1, 1, 2]),
        "mapping": CpuMapping(
            # TileLang takes ten times as long where rows share a packet: a few of them.
            local_lanes=draw.choice([*[width] * 10, width // 2, 1]),
            row_block=draw.choice([*[1] * 10, 2]),
            simd_scope=draw.choice(["none", "all"]),
            nontemporal=width == 16 and draw.random() < 0.5,
        ),
    }
    return Candidate(**(fields | knobs))


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A case and candidate with the schedule that is emitted."""

    case: Case
    schedule: Schedule

    @property
    def plan(self) -> Plan:
        """What is said about it."""
        return plan_of(self.schedule)

    @property
    def slots(self) -> int:
        """Rows of one packet."""
        candidate = self.schedule.candidate
        return candidate.row_block * candidate.width // self.schedule.lanes_per_row


def planned(program: dict[str, Any] | str, candidate: Candidate, *, chunks: int, ks: int = 1) -> Planned | Rejected:
    """At ``chunks`` packets of columns, so that W·V divides every loop's extent."""
    named = {"kernel": program} if isinstance(program, str) else {"program": program}
    dims = {"rows": 1, "cols": candidate.width * candidate.vector * chunks}
    if isinstance(program, dict) and "ks" in program["dims"]:
        dims["ks"] = ks
    case = resolve_case({**named, "dims": dims})
    schedule = build_schedule(case, candidate)
    return schedule if isinstance(schedule, Rejected) else Planned(case=case, schedule=schedule)


def random_plans() -> list[Planned]:
    """Every program with the first candidate drawn for it that is legal."""
    draw = random.Random(20261129)
    out: list[Planned] = []
    while len(out) < RANDOM_PROGRAMS:
        program = random_program(draw)
        for _ in range(20):
            made = planned(program, random_candidate(draw), chunks=draw.randint(1, 3))
            if isinstance(made, Planned):
                out.append(made)
                break
    return out


WIDE = document(
    [
        {"reduce": {"into": "total", "op": "sum", "over": ["col", "k"], "value": "m * u"}},
        {"tile": {"name": "t", "over": ["col", "k"], "value": "m - total"}},
        {"reduce": {"into": "peak", "op": "max", "over": ["col", "k"], "value": "t"}},
        {"store": {"tensor": "n", "over": ["col", "k"], "value": "t * m + u - peak"}},
    ],
    {"m": "rkc", "u": "rkc"},
    {"n": "rkc"},
)
"""Two axes, permuted: the flattened order is not the memory's."""
STREAMED = document(
    [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"reducer": {"name": "acc", "op": "sum"}},
        {"loop": {"count": "ks", "body": [{"update": {"reducer": "acc", "over": ["col"], "value": "x * w - total"}}]}},
        {"finalize": {"reducer": "acc", "into": "more"}},
        {"reducer": {"name": "chain", "op": "sum", "order": "strict"}},
        {"update": {"reducer": "chain", "over": ["col"], "value": "x - r"}},
        {"finalize": {"reducer": "chain", "into": "folded"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x * more - folded"}},
    ],
    {"x": "rc", "r": "rc", "w": "c"},
    {"y": "rc"},
    loops=True,
)
"""A loop whose body reads ks times, and a fold in index order."""
ARRAY = document(
    [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"reducer": {"name": "acc", "op": "sum", "shape": ["col"]}},
        {"update": {"reducer": "acc", "over": ["col"], "index": ["index(col)"], "value": "x * total"}},
        {"update": {"reducer": "acc", "over": ["col"], "index": ["index(col)"], "value": "x - r"}},
        {"finalize": {"reducer": "acc", "into": "sums"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "sums + x"}},
    ],
    {"x": "rc", "r": "rc"},
    {"y": "rc"},
)
"""A reducer array: its elements are partials, which nothing counts."""
ELIMINATED = document(
    [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x * x"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    ],
    {"x": "rc"},
    {"s": "r"},
)


def chosen_plans() -> list[Planned]:
    """The kernels and two programs that the generator does not make, over the knobs that move an access."""
    draw = random.Random(7)
    out = []
    for program in ("softmax", "rms_norm", "layer_norm", WIDE, STREAMED, ARRAY, ELIMINATED):
        word = (("x", "cache"),) if program is ELIMINATED else "cache"
        for input_, fusion in (("reload", "separate"), (word, "separate"), (word, "fused")):
            materialize = draw.choice(["private", "recompute"])
            candidate = random_candidate(draw, input=input_, fusion=fusion, materialize=materialize)
            made = planned(program, candidate, chunks=2, ks=3)
            assert isinstance(made, Planned), made
            out.append(made)
    return out


@pytest.fixture(scope="module")
def plans() -> list[Planned]:
    return chosen_plans() + random_plans()


@pytest.fixture(scope="module")
def kernels(plans: list[Planned], tmp_path_factory: pytest.TempPathFactory) -> CountedKernels:
    texts = [emit(one.schedule).tilelang_text for one in plans]
    return CountedKernels(texts, tmp_path_factory.mktemp("counted"))


def run(kernels: CountedKernels, number: int, one: Planned) -> dict[str, Accesses]:
    """Run on ``PACKETS`` packets of rows, and check that the text computes its program."""
    rows = PACKETS * one.slots
    case = Case(**{**vars(one.case), "dims": {**one.case.dims, "rows": rows}})
    numbers = np.random.default_rng(number)
    tensors = case.program.tensors
    inputs = {t.name: numbers.standard_normal(case.shape(t)).astype(np.float32) for t in tensors if t.role == "input"}
    arrays = inputs | {t.name: np.full(case.shape(t), np.nan, np.float32) for t in tensors if t.role == "output"}
    found = kernels.run(number, arrays, rows)
    for name, expected in evaluate(case, inputs).items():
        np.testing.assert_allclose(arrays[name], expected, rtol=2e-3, atol=2e-3)
    counted = {t.name for t in tensors if column_axes(case.program, t)}
    return {name: a for name, a in found.items() if name.startswith("p_") or name.removeprefix("g_") in counted}


def shown(one: Planned) -> str:
    return f"{one.schedule.candidate.document()} {one.case.dims} {one.case.document().get('program', one.case.kernel)}"


def test_loads_and_stores_are_those_of_the_plan(plans: list[Planned], kernels: CountedKernels) -> None:
    """In total, per program instance; every scalar here is four bytes."""
    assert {STORED_BYTES[dtype] for one in plans for dtype in one.case.dtypes.values()} == {4}
    fused = 0
    for number, one in enumerate(plans):
        found = run(kernels, number, one)
        rows = PACKETS * one.slots
        of_row = one.plan.demand.per_program
        globals_ = total(a for name, a in found.items() if name.startswith("g_"))
        privates = total(a for name, a in found.items() if name.startswith("p_"))
        assert [4 * count for count in globals_] == [
            rows * of_row.global_read_bytes,
            rows * of_row.global_write_bytes,
        ], shown(one)
        assert [4 * count for count in privates] == [
            rows * of_row.private_read_bytes,
            rows * of_row.private_write_bytes,
        ], shown(one)
        fused += one.schedule.candidate.fusion == "fused"
    assert fused > len(plans) / 5, "the draw has become one-sided"


def test_every_lane_does_what_the_plan_says_of_a_lane(plans: list[Planned], kernels: CountedKernels) -> None:
    """Elements belong to lane (e // V) % L; where every tensor's element tells its lane, each lane is counted."""
    told = 0
    for number, one in enumerate(plans):
        program = one.case.program
        full = [t for t in program.tensors if len(t.axes) > 1]
        strict = any(isinstance(step, DistributedLoop) and step.serial for step in one.schedule.steps)
        if strict or len(program.axes) > 2 or any(t.axes[0] != program.row_axis.name for t in full):
            continue
        told += 1
        found = run(kernels, number, one)
        lane_of = one.plan.demand.per_lane
        candidate, lanes = one.schedule.candidate, one.schedule.lanes_per_row
        columns = one.case.dims["cols"]
        counted = {"g": Counter[tuple[int, int, str]](), "p": Counter[tuple[int, int, str]]()}
        for name, accesses in found.items():
            for kind, counts in (("read", accesses.reads), ("write", accesses.writes)):
                for index in np.flatnonzero(counts):
                    row, element = divmod(int(index), columns)
                    if name.startswith("p_"):
                        row, element = private_place(one, int(index), columns)
                    elif len(program.tensor(name.removeprefix("g_")).axes) == 1:
                        row = -1  # shared by all rows: below, each row has its part
                    counted[name[0]][row, element // candidate.vector % lanes, kind] += int(counts[index])
        rows = PACKETS * one.slots
        for lane in range(lanes):
            for space, read, written in (
                ("g", lane_of.global_read_bytes, lane_of.global_write_bytes),
                ("p", lane_of.private_read_bytes, lane_of.private_write_bytes),
            ):
                passes = rows // one.slots if space == "p" else 1  # private storage is one packet's, used again
                for row in range(rows // passes):
                    shared, left = divmod(counted[space][-1, lane, "read"], rows)
                    assert left == 0, shown(one)
                    got = counted[space][row, lane, "read"], counted[space][row, lane, "write"]
                    assert [4 * (got[0] // passes + shared), 4 * (got[1] // passes)] == [read, written], shown(one)
    assert told > len(plans) / 2


def private_place(one: Planned, index: int, columns: int) -> tuple[int, int]:
    """Row slot and element that a place in private storage belongs to."""
    candidate, lanes = one.schedule.candidate, one.schedule.lanes_per_row
    across = candidate.width // lanes
    chunk = lanes * candidate.vector
    block, inside = divmod(index, across * columns)
    pass_, inside = divmod(inside, across * chunk)
    slot, offset = divmod(inside, chunk)
    return block * across + slot, pass_ * chunk + offset


def test_private_storage_is_what_the_plan_reports(plans: list[Planned], kernels: CountedKernels) -> None:
    for number, one in enumerate(plans):
        width = one.schedule.candidate.width
        assert kernels.declared_scalars(number) == one.plan.allocated_scalars * width, shown(one)
        assert one.plan.allocated_scalars == one.plan.private_scalars, "whole vectors: nothing is padded"


def test_a_snapshot_that_nothing_reads_later_is_not_there(plans: list[Planned], kernels: CountedKernels) -> None:
    """The fused reduction alone reads the same as reload; kept apart, the snapshot costs a write and a read."""
    counts = {}
    for number, one in enumerate(plans):
        if one.case.program.name == "counted" and len(one.case.program.body) == 2:
            found = run(kernels, number, one)
            per_element = PACKETS * one.slots * one.case.dims["cols"]
            tiles = total(a for name, a in found.items() if name.startswith("p_"))
            key = ("cache" if one.schedule.candidate.input != "reload" else "reload", one.schedule.candidate.fusion)
            counts[key] = (found["g_x"].reads.sum() / per_element, tiles[0] / per_element, tiles[1] / per_element)
    assert counts == {
        ("reload", "separate"): (1, 0, 0),
        ("cache", "separate"): (1, 1, 1),
        ("cache", "fused"): (1, 0, 0),
    }

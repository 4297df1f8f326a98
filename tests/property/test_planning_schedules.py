"""A schedule means what its program means: every candidate of random programs, interpreted lane by lane.

The interpreter below follows the ops literally. A private tile's element is readable only by the lane that stored it,
outputs start poisoned, and every access is counted, so that a wrong merge, hoist, staging, snapshot or count shows.
"""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from search.outcome import Rejected
from search.planning.build import ScheduleBuilder
from search.planning.demand import demand
from search.planning.schedule import (
    Accumulate,
    Collective,
    Compute,
    DistributedLoop,
    GlobalLoad,
    GlobalStore,
    OpenReducer,
    PrivateLoad,
    PrivateStore,
    RowCompute,
    RowLoad,
    RowStore,
    RowUpdate,
    SerialLoop,
)
from search.program.ir import Binary, Call, Cast, Compare, Const, Index, Name, Select, Unary
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

COMBINE = {"sum": lambda a, b: a + b, "max": max, "min": min, "product": lambda a, b: a * b}
IDENTITY = {"sum": 0.0, "max": -math.inf, "min": math.inf, "product": 1.0}


class Row:
    """One program instance, run by the schedule's lanes."""

    def __init__(self, schedule, row, tensors):
        self.schedule, self.case, self.row, self.tensors = schedule, schedule.case, row, tensors
        self.scalars = {**self.case.params, **self.case.dims}
        self.private, self.partials = {}, {}
        self.arrays = {array.name: None for array in schedule.arrays}
        self.stored, self.streamed = {}, {}
        self.ops = {r.name: r.op for r in schedule.reducers}
        self.bytes = dict.fromkeys(("global_read", "global_write", "private_read", "private_write"), 0)

    def run(self):
        self.steps(self.schedule.steps)

    def steps(self, steps):
        for step in steps:
            match step:
                case SerialLoop():
                    for trip in range(step.trips):
                        self.scalars[step.index] = trip
                        self.steps(step.steps)
                case OpenReducer():
                    self.partials[step.reducer] = {}
                case DistributedLoop():
                    for element in range(step.extent):
                        self.element(step, element)
                case RowUpdate():
                    if step.where is None or self.value(step.where, {}):
                        self.accumulate(step, (0, 0), {})
                case Collective():
                    totals = [IDENTITY[step.op]] * step.elements
                    for (_, element), partial in self.partials.pop(step.reducer).items():
                        totals[element] = COMBINE[step.op](totals[element], partial)
                    if step.seed is not None:
                        totals = [COMBINE[step.op](total, self.value(step.seed, {})) for total in totals]
                    if step.into in self.arrays:
                        self.arrays[step.into] = totals
                    else:
                        (self.scalars[step.into],) = totals
                case RowLoad():
                    self.scalars[step.into] = self.load(step, {})
                case RowCompute():
                    self.scalars[step.into] = self.value(step.value, {})
                case RowStore():
                    self.tensors[step.tensor][self.row] = self.value(step.value, {})

    def element(self, loop, element):
        candidate = self.schedule.candidate
        lanes = self.schedule.lanes_per_row
        lane = element // candidate.vector % lanes
        partial = element // (candidate.vector * lanes) % candidate.partials
        extents = [self.case.extent(axis) for axis in loop.axes]
        local = dict(zip(loop.axes, (int(i) for i in np.unravel_index(element, extents)), strict=True))
        for op in loop.ops:
            match op:
                case GlobalLoad():
                    self.count("global_read")
                    local[op.into] = self.load(op, local)
                case PrivateLoad():
                    self.count("private_read")
                    local[op.into] = self.private[op.tile, lane, element]
                case Compute():
                    local[op.into] = self.value(op.value, local)
                case PrivateStore():
                    self.count("private_write")
                    self.private[op.tile, lane, element] = self.value(op.value, local)
                case GlobalStore():
                    self.count("global_write")
                    axes = self.case.program.tensor(op.tensor).axes[1:]
                    place = (self.row, *(local[axis] for axis in axes))
                    self.tensors[op.tensor][place] = self.value(op.value, local)
                    if not op.staged:
                        passes = self.streamed if op.streaming else self.stored
                        flat = np.ravel_multi_index(place, self.tensors[op.tensor].shape)
                        passes.setdefault((op.tensor, element // (candidate.vector * lanes)), []).append(int(flat))
                case Accumulate():
                    if op.where is None or self.value(op.where, local):
                        strict = next(r.strict for r in self.schedule.reducers if r.name == op.reducer)
                        self.accumulate(op, (0, 0) if strict else (lane, partial), local)

    def count(self, kind):
        self.bytes[kind] += 4

    def accumulate(self, step, place, local):
        partials, op, element = self.partials[step.reducer], self.ops[step.reducer], 0
        for index in step.index:
            at = self.value(index.value, local)
            assert 0 <= at < index.extent or index.clamped
            element = element * index.extent + at
        partials[place, element] = COMBINE[op](
            partials.get((place, element), IDENTITY[op]), self.value(step.value, local)
        )

    def load(self, op, local):
        names = {**self.scalars, **local, self.case.program.row_axis.name: self.row}
        place = tuple(sum(c * names[n] for n, c in sub.terms) + sub.constant for sub in op.index)
        value = self.tensors[op.tensor][place]
        assert not math.isnan(value), f"{op.tensor} was read before it was written"
        return float(value)

    def value(self, expr, local):
        def of(inner):
            return self.value(inner, local)

        match expr:
            case Const():
                return expr.value
            case Name(name=name) if name in self.arrays:
                (array,) = (array for array in self.schedule.arrays if array.name == name)
                return self.arrays[name][np.ravel_multi_index([local[axis] for axis in array.axes], array.extents)]
            case Name():
                return local[expr.name] if expr.name in local else self.scalars[expr.name]
            case Index():
                return local[expr.axis]
            case Cast():
                return float(of(expr.value))
            case Unary():
                return -of(expr.operand)
            case Binary():
                a, b = of(expr.left), of(expr.right)
                return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[expr.op]()
            case Compare():
                return {"<": of(expr.left) < of(expr.right), ">": of(expr.left) > of(expr.right)}[expr.op]
            case Select():
                return of(expr.then) if of(expr.condition) else of(expr.otherwise)
            case Call():
                functions = {"tanh": math.tanh, "abs": abs, "min": min, "max": max}
                return functions[expr.function](*(of(arg) for arg in expr.args))
        raise AssertionError(expr)


def check_streams(row):
    """What streams fills whole lines, pass by pass, and everything that could stream was asked to."""
    candidate = row.schedule.candidate
    chunk = row.schedule.lanes_per_row * candidate.vector
    if not candidate.mapping.nontemporal or chunk * 4 % 64:
        assert not row.streamed
        return
    assert not row.stored
    last = max(number for _, number in row.streamed)
    for (_, number), addresses in row.streamed.items():
        assert addresses == list(range(addresses[0], addresses[0] + len(addresses)))
        assert len(addresses) == chunk or number == last, "only the tail, which is stored plainly, is shorter"


@st.composite
def programs(draw):
    """A legal program over one or two column axes, in which every name is used."""
    wide = draw(st.booleans())
    full_over = ["col", "k"] if wide else ["col"]
    all_elements = ["x", "r", "w"] + (["t"] if wide else [])
    scalars, all_tiles, body = ["b"], {}, []
    early_store = {"store": {"tensor": "y", "over": full_over, "value": " + ".join(all_elements)}}
    stored_early = draw(st.booleans())
    if stored_early:
        body.append(early_store)

    def element():
        elements = all_elements if over == full_over else ["x", "w"]
        tiles = [name for name, axes in all_tiles.items() if set(axes) <= set(over)]
        atom = draw(st.sampled_from([*elements, *tiles, *scalars, "cast(index(col), float32)", "x * x"]))
        other = draw(st.sampled_from([*elements, *tiles, *scalars, "0.5"]))
        shape = draw(
            st.sampled_from(["{} + {}", "{} - {}", "max({}, {})", "tanh({}) * {}", "select({0} > 0.2, {1}, {0})"])
        )
        return shape.format(atom, other)

    for number in range(draw(st.integers(1, 6))):
        over = draw(st.sampled_from([["col"], full_over]))
        kind = draw(st.sampled_from(["reduce", "reduce", "tile", "tile", "let", "explicit", "array", "loop", "stage"]))
        op = draw(st.sampled_from(["sum", "max", "min"]))
        if kind == "reduce":
            value = element()
            body.append({"reduce": {"into": f"q{number}", "op": op, "over": over, "value": value}})
            scalars.append(f"q{number}")
        elif kind == "tile":
            value = element()
            body.append({"tile": {"name": f"e{number}", "over": over, "value": value}})
            all_tiles[f"e{number}"] = over
        elif kind == "let":
            a, c = draw(st.sampled_from(scalars)), draw(st.sampled_from(scalars))
            body.append({"let": {"name": f"h{number}", "value": f"{a} * 0.5 - {c}"}})
            scalars.append(f"h{number}")
        elif kind == "explicit":
            seed = draw(st.sampled_from([None, *scalars]))
            reducer = {"name": f"a{number}", "op": op} | ({} if seed is None else {"seed": seed})
            first = {"reducer": f"a{number}", "over": over, "value": element(), "where": "index(col) > 1"}
            middle = {"reducer": f"a{number}", "over": [], "value": draw(st.sampled_from(scalars))}
            last = {"reducer": f"a{number}", "over": over, "value": element()}
            updates = draw(st.permutations([first, middle, last]))
            body += [{"reducer": reducer}, *({"update": update} for update in updates)]
            body.append({"finalize": {"reducer": f"a{number}", "into": f"f{number}"}})
            scalars.append(f"f{number}")
        elif kind == "array":
            # an element of its own for each column, or all of them in a few
            index = draw(st.sampled_from(["index(col)", "cols - 1 - index(col)", "min(index(col), 1) * (cols - 1)"]))
            order = draw(st.sampled_from(["any", "strict"]))
            body.append({"reducer": {"name": f"a{number}", "op": op, "shape": ["col"], "order": order, "seed": "b"}})
            update = {"reducer": f"a{number}", "over": over, "value": element(), "index": [index]}
            body.append({"update": update})
            body.append({"finalize": {"reducer": f"a{number}", "into": f"e{number}"}})
            all_tiles[f"e{number}"] = ["col"]
        elif kind == "loop":
            value = element()
            inside = [
                {
                    "let": {
                        "name": f"l{number}",
                        "value": f"{draw(st.sampled_from(scalars))} + cast(i{number}, float32)",
                    }
                },
                {"tile": {"name": f"u{number}", "over": over, "value": f"{value} + l{number}"}},
                {"update": {"reducer": f"a{number}", "over": over, "value": f"u{number} * 0.5"}},
                {"update": {"reducer": f"a{number}", "over": over, "value": f"u{number} + {element()} + w[i{number}]"}},
            ]
            body.append({"reducer": {"name": f"a{number}", "op": op}})
            trips = draw(st.sampled_from(["none", "once", "cols"]))
            body.append({"loop": {"count": trips, "index": f"i{number}", "body": inside}})
            body.append({"update": {"reducer": f"a{number}", "over": [], "value": "0.5"}})
            body.append({"finalize": {"reducer": f"a{number}", "into": f"f{number}"}})
            scalars.append(f"f{number}")
        else:
            body.append({"stage": {}})
    tiles = list(all_tiles)
    half = 0 if stored_early else draw(st.integers(0, len(tiles)))
    over = full_over
    if not stored_early:
        body.append({"store": {"tensor": "y", "over": over, "value": " + ".join([*all_elements, *tiles[:half]])}})
    if draw(st.booleans()):
        body.append({"stage": {}})
    body.append({"store": {"tensor": "z", "over": over, "value": " - ".join(["x", *tiles[half:], *scalars])}})
    body.append({"store": {"tensor": "s", "over": [], "value": " + ".join(scalars)}})
    full = ["row", *over]
    tensors = {"x": full if not wide else ["row", "col"], "r": full, "w": ["col"], "b": ["row"], "t": full}
    if not wide:
        del tensors["t"]
    outputs = {"y": full, "z": full, "s": ["row"]}
    words = repr(body)
    shared = draw(st.sampled_from([None, "y", "z"])) if not wide else None
    document = {
        "name": "random",
        "params": {name: value for name, value in (("none", 0), ("once", 1)) if f"'{name}'" in words},
        "dims": ["rows", "cols", *(["ks"] if wide else [])],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}}
        | ({"k": {"dim": "ks", "kind": "column"}} if wide else {}),
        "tensors": {name: {"axes": axes, "role": "input", "dtype": "float32"} for name, axes in tensors.items()}
        | {
            name: {"axes": axes, "role": "output", "dtype": "float32"} | ({"aliases": "x"} if name == shared else {})
            for name, axes in outputs.items()
        },
        "body": body,
    }
    dims = {"rows": 2, "cols": draw(st.integers(1, 9))} | ({"ks": draw(st.integers(1, 3))} if wide else {})
    return resolve_case({"program": document, "dims": dims})


@st.composite
def lanes(draw):
    width = draw(st.sampled_from([1, 2, 4, 16]))
    return {
        "width": width,
        "vector": draw(st.sampled_from([1, 2, 8])),
        "partials": draw(st.sampled_from([1, 2])),
        "unroll": 1,
        "mapping": CpuMapping(
            local_lanes=draw(st.sampled_from([n for n in (1, 2, width) if width % n == 0])),
            nontemporal=width == 16 and draw(st.booleans()),
        ),
    }


@settings(max_examples=120, deadline=None)
@given(programs(), lanes(), st.integers(0, 2**32 - 1))
def test_every_candidate_computes_the_program(case, spread, seed):
    rng = np.random.default_rng(seed)
    inputs = {t.name: rng.standard_normal(case.shape(t)) for t in case.program.tensors if t.role == "input"}
    expected = evaluate(case, inputs)
    builder = ScheduleBuilder(case)
    ran = 0
    for word, fusion, materialize in itertools.product(
        ("reload", "cache"), ("separate", "fused"), ("private", "output", "recompute")
    ):
        candidate = Candidate(input=word, fusion=fusion, materialize=materialize, **spread)
        schedule = builder.build(candidate)
        if isinstance(schedule, Rejected):
            assert schedule.stage == "constraints"
            continue
        ran += 1
        outputs = {t.name: np.full(case.shape(t), np.nan) for t in case.program.tensors if t.role == "output"}
        given = {name: values.copy() for name, values in inputs.items()}
        shared = {t.name: given[t.aliases] for t in case.program.tensors if t.aliases}
        outputs |= shared
        rows = [Row(schedule, row, given | outputs) for row in range(case.rows)]
        for row in rows:
            row.run()
            check_streams(row)
        for name, wanted in expected.items():
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-9, atol=1e-9)
        counted = demand(schedule).per_program
        for row in rows:
            assert row.bytes == {kind: getattr(counted, f"{kind}_bytes") for kind in row.bytes}
    assert ran >= 1 or any(t.aliases for t in case.program.tensors)

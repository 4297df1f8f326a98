"""Deferred reducers compiled and run, against numpy sums written here, which share no code with the oracle.

A reference answers, for each output, its values in float64 and what its contributions amount to in magnitude: float32
rounding is a small part of that, while one contribution lost or counted twice is a large one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.checks import Tally, compare_output
from search.measuring.oracle import compute_oracle, rows_first
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain

Inputs = Mapping[str, np.ndarray]
Expected = dict[str, tuple[np.ndarray, np.ndarray]]
Reference = Callable[[Inputs, Mapping[str, int]], Expected]
ROWS = 19
"""Above a packet of 16 rows, and no multiple of one."""
ROUNDING = 3e-6
"""Of the contributions' magnitude: dozens of float32 roundings, and far below one contribution."""


def candidate(width: int, lanes: int, partials: int = 1, vector: int = 1, **more: Any) -> Candidate:
    mapping = CpuMapping(local_lanes=lanes, row_block=more.pop("row_block", 1), simd_scope=more.pop("simd", "all"))
    knobs = {"input": "reload", "fusion": "separate", "materialize": "private", "unroll": 1} | more
    return Candidate(width=width, partials=partials, vector=vector, mapping=mapping, **knobs)


CANDIDATES = {
    "w8": candidate(8, 8),
    "w16-p4-v4": candidate(16, 16, 4, 4, simd="main"),
    "w32-p4": candidate(32, 32, 4, unroll=2, input="cache"),
    "w64-v4": candidate(64, 64, vector=4, input="cache", materialize="recompute"),
    "whole-w8-p4": candidate(8, 1, 4),
    "whole-w16-v4-rb2": candidate(16, 1, vector=4, row_block=2),
    "half-w16-p2-v2": candidate(16, 4, 2, 2, input="cache", simd="none"),
}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A program, its dims, and what it should compute."""

    body: list[dict[str, Any]]
    tensors: dict[str, Any]
    dims: dict[str, int]
    reference: Reference
    params: dict[str, float | int]
    same_bits: bool = False

    def case(self) -> Case:
        """The probe at ``ROWS`` rows."""
        columns = {"i": "m", "j": "n", "k": "q"}
        axes = {axis: {"dim": dim, "kind": "column"} for axis, dim in columns.items() if dim in self.dims}
        axes["row"] = {"dim": "rows", "kind": "row"}
        document = {"name": "probe", "dims": ["rows", *self.dims], "axes": axes, "params": self.params}
        program = {**document, "tensors": self.tensors, "body": self.body}
        return resolve_case({"program": program, "dims": {"rows": ROWS, **self.dims}})


def probe(
    body: list[dict[str, Any]], tensors: str, reference: Reference, same_bits: bool = False, **dims: Any
) -> Probe:
    """``tensors``: ``"A:row,i,j x:j > y:row,i"``, with ``=x`` written over x; dims that are params end in ``_``."""
    inputs, _, outputs = tensors.partition(">")
    declared: dict[str, Any] = {}
    for role, texts in (("input", inputs), ("output", outputs)):
        for text in texts.split():
            name, axes = text.split(":")
            axes, _, shared = axes.partition("=")
            declared[name] = {"axes": axes.split(","), "role": role} | ({"aliases": shared} if shared else {})
    params = {name[:-1]: value for name, value in dims.items() if name.endswith("_")}
    plain = {name: value for name, value in dims.items() if not name.endswith("_")}
    return Probe(body=body, tensors=declared, dims=plain, reference=reference, params=params, same_bits=same_bits)


def opened(name: str, op: str = "sum", **more: Any) -> dict[str, Any]:
    return {"reducer": {"name": name, "op": op, **more}}


def update(reducer: str, over: str, value: str, **more: Any) -> dict[str, Any]:
    return {"update": {"reducer": reducer, "over": over.split(), "value": value, **more}}


def closed(reducer: str, into: str) -> dict[str, Any]:
    return {"finalize": {"reducer": reducer, "into": into}}


def store(tensor: str, over: str, value: str) -> dict[str, Any]:
    return {"store": {"tensor": tensor, "over": over.split(), "value": value}}


def total(terms: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return terms.sum(axes), np.abs(terms).sum(axes)


def peaks(v: Inputs, d: Mapping[str, int]) -> Expected:
    held = np.full((ROWS, d["n"], d["m"]), -np.inf)
    for i in range(d["m"]):
        here = (v["A"][:, i, :, None] * v["w"][:, None, :]).max(2)
        held[:, :, d["m"] - 1 - i] = np.maximum(held[:, :, d["m"] - 1 - i], here)
        if i < 2:
            held[:, 2, i] = np.maximum(held[:, 2, i], 10 * v["w"][:, 0])
    held[:, d["n"] - 1, 0] = np.maximum(held[:, d["n"] - 1, 0], 0.125)
    held = np.maximum(held, -0.5)
    return {"y": (2 * held, 0 * held), "z": total(held.reshape(ROWS, -1), (1,))}


def several_sites(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The contributions of a strict fold in its order."""
    first = np.full((ROWS, 1), 0.25, x.dtype)
    return np.concatenate([first, x * w, np.where(x > 0, w, x.dtype.type(0)), x], axis=1)


def binned(v: Inputs, d: Mapping[str, int]) -> Expected:
    place = (v["x"].astype(np.float32) * np.float32(3)).astype(np.int32)
    sums, sizes, counts = (np.zeros((ROWS, d["m"])) for _ in range(3))
    for row in range(ROWS):
        for j in range(d["n"]):
            x, at = v["x"][row, j], place[row, j]
            sums[row, min(max(at, 0), d["m"] - 1)] += x
            sizes[row, min(max(at, 0), d["m"] - 1)] += abs(x)
            if 0 <= at < d["m"] and x != 0.5:
                counts[row, at] += 1
    return {"y": (sums, sizes), "z": (counts, 0 * counts)}


def streamed(v: Inputs, d: Mapping[str, int]) -> Expected:
    y, z = [np.zeros((ROWS, d["m"]))] * 2, [np.zeros(ROWS)] * 2
    for t in range(d["n"]):
        w = v["x"][:, t] * (t + 1)
        part = v["A"][:, :, t, :] * w[:, None, None]
        kept = np.delete(part + 0.5, t, axis=2)
        y = [y[0] + kept.sum(2), y[1] + np.abs(kept).sum(2)]
        z = [z[0] + (part * part).sum((1, 2)) + w, z[1] + (part * part).sum((1, 2)) + np.abs(w)]
    return {"y": (y[0], y[1]), "z": (z[0], z[1])}


PROBES: dict[str, Probe] = {
    "several sites, a seed, a condition, the row itself": probe(
        [
            opened("acc", seed="2.5"),
            update("acc", "i j", "A * x"),
            update("acc", "j", "x", where="x > 0.0 and index(j) != 3"),
            update("acc", "", "10.0"),
            opened("top", "max", seed="0.25"),
            update("top", "i", "A[i, 0]"),
            update("top", "j", "x", where="x < 0.0"),
            closed("acc", "sum"),
            closed("top", "peak"),
            store("y", "", "sum"),
            store("z", "", "peak"),
        ],
        "A:row,i,j x:row,j > y:row z:row",
        lambda v, d: {
            "y": total(
                np.concatenate(
                    [
                        (v["A"] * v["x"][:, None, :]).reshape(ROWS, -1),
                        np.where((v["x"] > 0) & (np.arange(d["n"]) != 3), v["x"], 0),
                        np.full((ROWS, 1), 12.5),
                    ],
                    axis=1,
                ),
                (1,),
            ),
            "z": (
                np.maximum(np.maximum(v["A"][:, :, 0].max(1), 0.25), np.where(v["x"] < 0, v["x"], -np.inf).max(1)),
                np.zeros(ROWS),
            ),
        },
        m=5,
        n=43,
    ),
    "strict folds beside an unordered sum": probe(
        [
            opened("fold", order="strict", seed="0.5"),
            opened("any"),
            update("fold", "i j", "A * x"),
            update("any", "i j", "A"),
            update("fold", "j", "x", where="x > 0.0"),
            update("fold", "", "1.0"),
            closed("fold", "chain"),
            closed("any", "loose"),
            store("z", "", "loose"),
            store("y", "", "chain"),
        ],
        "A:row,i,j x:row,j > y:row z:row",
        lambda v, d: {
            "y": total(
                np.concatenate(
                    [
                        (v["A"] * v["x"][:, None, :]).reshape(ROWS, -1),
                        np.where(v["x"] > 0, v["x"], 0),
                        np.full((ROWS, 1), 1.5),
                    ],
                    axis=1,
                ),
                (1,),
            ),
            "z": total(v["A"], (1, 2)),
        },
        m=3,
        n=37,
    ),
    "a strict product and sum of products": probe(
        [
            opened("fold", order="strict"),
            update("fold", "j", "x * w"),
            closed("fold", "chain"),
            opened("factor", "product", order="strict"),
            update("factor", "j", "1.0 + x * 0.01"),
            closed("factor", "growth"),
            store("y", "j", "chain + growth * w"),
        ],
        "x:row,j w:j > y:row,j",
        lambda v, d: {
            "y": (
                (v["x"] * v["w"]).sum(1)[:, None] + (1 + v["x"] * 0.01).prod(1)[:, None] * v["w"],
                np.abs(v["x"] * v["w"]).sum(1)[:, None] + 10 * np.abs(v["w"]),
            )
        },
        n=131,
        same_bits=True,
    ),
    "a strict fold over several sites": probe(
        [
            opened("fold", order="strict"),
            store("z", "j", "x + w"),
            update("fold", "", "0.25"),
            update("fold", "j", "x * w"),
            update("fold", "j", "w", where="x > 0.0"),
            update("fold", "j", "x"),
            closed("fold", "chain"),
            store("y", "", "chain"),
        ],
        "x:row,j w:row,j > y:row z:row,j",
        lambda v, d: {
            "y": total(several_sites(v["x"], v["w"]), (1,)),
            "z": (v["x"] + v["w"], np.abs(v["x"]) + np.abs(v["w"])),
        },
        n=67,
        same_bits=True,
    ),
    "matrix times vector": probe(
        [
            opened("acc", shape=["i"]),
            update("acc", "i j", "A * x", index=["index(i)"]),
            closed("acc", "y0"),
            store("y", "i", "y0 + bias"),
        ],
        "A:row,i,j x:j bias:i > y:row,i",
        lambda v, d: {
            "y": (
                (v["A"] * v["x"]).sum(2) + v["bias"],
                np.abs(v["A"] * v["x"]).sum(2) + np.abs(v["bias"]),
            )
        },
        m=7,
        n=45,
    ),
    "a matrix of results, several sites, a seed each": probe(
        [
            opened("acc", "max", shape=["n", "i"], seed="-0.5"),
            update("acc", "i j k", "A * w", index=["index(j)", "m - 1 - index(i)"]),
            update("acc", "i", "10.0 * w[0]", index=["2", "index(i)"], where="index(i) < 2"),
            update("acc", "", "0.125", index=["n - 1", "0"]),
            closed("acc", "peaks"),
            {"reduce": {"into": "all", "op": "sum", "over": ["i", "j"], "value": "peaks"}},
            store("y", "i j", "peaks * 2.0"),
            store("z", "", "all"),
        ],
        "A:row,i,j w:row,k > y:row,j,i z:row",
        peaks,
        m=4,
        n=5,
        q=11,
    ),
    "counts by an index from data, clamped and guarded": probe(
        [
            opened("clamped", shape=["i"]),
            opened("guarded", shape=["i"], dtype="int32"),
            update("clamped", "j", "x", index=["max(min(cast(x * 3.0, int32), m - 1), 0)"]),
            update(
                "guarded",
                "j",
                "1",
                index=["cast(x * 3.0, int32)"],
                where="cast(x * 3.0, int32) >= 0 and cast(x * 3.0, int32) < m and x != 0.5",
            ),
            closed("clamped", "sums"),
            closed("guarded", "counts"),
            store("y", "i", "sums"),
            store("z", "i", "cast(counts, float32)"),
        ],
        "x:row,j > y:row,i z:row,i",
        binned,
        m=5,
        n=77,
    ),
    "strict arrays": probe(
        [
            opened("acc", shape=["i"], order="strict"),
            update("acc", "j i", "A * x", index=["index(i)"]),
            closed("acc", "y0"),
            store("y", "i", "y0"),
        ],
        "A:row,i,j x:j > y:row,i",
        lambda v, d: {"y": total(v["A"] * v["x"], (2,))},
        m=5,
        n=33,
        same_bits=True,
    ),
    "streaming over tiles, one collective": probe(
        [
            opened("acc", shape=["i"]),
            opened("square"),
            {
                "loop": {
                    "count": "n",
                    "index": "t",
                    "body": [
                        {"let": {"name": "w", "value": "x[t] * cast(t + 1, float32)"}},
                        {"tile": {"name": "part", "over": ["i", "k"], "value": "A[i, t, k] * w"}},
                        update("acc", "i k", "part + 0.5", index=["index(i)"], where="index(k) != t"),
                        update("square", "i k", "part * part"),
                        update("square", "", "w"),
                    ],
                }
            },
            closed("acc", "y0"),
            closed("square", "z0"),
            store("y", "i", "y0"),
            store("z", "", "z0"),
        ],
        "A:row,i,j,k x:row,j > y:row,i z:row",
        streamed,
        m=3,
        n=4,
        q=21,
    ),
    "loops in loops, and loops of no trips": probe(
        [
            opened("acc"),
            opened("never", "max", seed="-3.0"),
            update("acc", "j", "x"),
            {
                "loop": {
                    "count": "m",
                    "body": [
                        {
                            "loop": {
                                "count": "twice",
                                "index": "t",
                                "body": [update("acc", "j", "x * cast(t + 1, float32)")],
                            }
                        },
                        update("acc", "", "0.25"),
                    ],
                }
            },
            {"loop": {"count": "rows", "body": [update("acc", "", "0.125")]}},
            {"loop": {"count": "zero", "index": "u", "body": [update("never", "j", "x[9 * u]")]}},
            closed("acc", "y0"),
            closed("never", "z0"),
            store("y", "j", "x * y0"),
            store("z", "i", "z0"),
        ],
        "x:row,j > y:row,j z:row,i",
        lambda v, d: {
            "y": (
                v["x"] * (v["x"].sum(1) * 10 + 0.75 + ROWS / 8)[:, None],
                np.abs(v["x"]) * (np.abs(v["x"]).sum(1) * 10 + 0.75 + ROWS / 8)[:, None],
            ),
            "z": (np.full((ROWS, 3), -3.0), np.zeros((ROWS, 3))),
        },
        m=3,
        n=37,
        twice_=2,
        zero_=0,
    ),
    "softmax in place": probe(
        [
            {"reduce": {"into": "peak", "op": "max", "over": ["j"], "value": "x"}},
            {"tile": {"name": "e", "over": ["j"], "value": "exp(x - peak)"}},
            {"reduce": {"into": "sum", "op": "sum", "over": ["j"], "value": "e"}},
            {"stage": {}},
            store("y", "j", "e / sum"),
        ],
        "x:row,j > y:row,j=x",
        lambda v, d: {"y": (np.exp(v["x"]) / np.exp(v["x"]).sum(1)[:, None], np.ones((ROWS, d["n"])))},
        n=41,
    ),
    "an input read on after it was overwritten": probe(
        [
            store("y", "j", "x * 2.0 - w[0]"),
            store("u", "j", "x - w[0]"),
            {"reduce": {"into": "sum", "op": "sum", "over": ["j"], "value": "x"}},
            store("z", "", "sum + w[0]"),
        ],
        "x:row,j w:row,j > y:row,j=x u:row,j=w z:row",
        lambda v, d: {
            "y": (2 * v["x"] - v["w"][:, :1], 10 * np.ones((ROWS, d["n"]))),
            "u": (v["x"] - v["w"][:, :1], 10 * np.ones((ROWS, d["n"]))),
            "z": total(np.concatenate([v["x"], v["w"][:, :1]], axis=1), (1,)),
        },
        n=53,
    ),
    "reversed in place, and read behind it for the first time": probe(
        [
            {"tile": {"name": "turned", "over": ["j"], "value": "x[n - 1 - j]"}},
            store("y", "j", "turned"),
            store("z", "j", "turned * 3.0"),
            {"reduce": {"into": "sum", "op": "sum", "over": ["j"], "value": "w * w"}},
            store("s", "", "sum"),
        ],
        "x:row,j w:row,j > y:row,j=x z:row,j=w s:row",
        lambda v, d: {
            "y": (v["x"][:, ::-1], 0 * v["x"]),
            "z": (3 * v["x"][:, ::-1], 3 * np.abs(v["x"][:, ::-1])),
            "s": total(v["w"] ** 2, (1,)),
        },
        n=39,
    ),
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.release()


def given(case: Case) -> dict[str, np.ndarray]:
    """Float32 inputs off centre, or small integers for int32 ones."""
    made = np.random.default_rng(7)
    out: dict[str, np.ndarray] = {}
    for tensor in case.program.tensors:
        if tensor.role == "input":
            shape = case.shape(tensor)
            whole = made.integers(-2, 9, shape).astype(np.int32)
            out[tensor.name] = whole if tensor.dtype == "int32" else made.normal(0.3, 1, shape).astype(np.float32)
    return out


def run(artifact: Artifact, case: Case, inputs: Inputs) -> dict[str, np.ndarray]:
    """One call; its outputs, which start as NaN."""
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    buffers = {name: value.copy() for name, value in inputs.items()}
    for tensor in case.program.tensors:
        if tensor.aliases is not None:
            buffers[tensor.name] = buffers[tensor.aliases]
        elif tensor.role == "output":
            buffers[tensor.name] = np.full(case.shape(tensor), np.nan, np.float32)
    arguments = [
        ctypes.c_int32(case.rows) if arg.kind == "dim" else ctypes.c_void_p(buffers[arg.name].ctypes.data)
        for arg in artifact.arguments
    ]
    assert function(*arguments) == 0
    aliased = {tensor.aliases for tensor in case.program.tensors}
    for name, value in inputs.items():
        if name not in aliased:
            np.testing.assert_array_equal(buffers[name], value)
    return {tensor.name: buffers[tensor.name] for tensor in case.program.tensors if tensor.role == "output"}


Items = dict[str, tuple[str, Case, Artifact]]


@pytest.fixture(scope="module")
def built(builder: Builder) -> Items:
    """Every probe under three candidates that planning admits, in turn: label → probe, case, artifact."""
    items: dict[str, tuple[str, Case, Candidate]] = {}
    for number, (name, one) in enumerate(PROBES.items()):
        case = one.case()
        legal = [label for label, chosen in CANDIDATES.items() if isinstance(build_schedule(case, chosen), Schedule)]
        for label in {legal[(number + step) % len(legal)] for step in ((0, 2, 4) if len(legal) > 4 else (0, 1, 2))}:
            items[f"{name} | {label}"] = (name, case, CANDIDATES[label])
    assert {label.split(" | ")[1] for label in items} == set(CANDIDATES)
    requests = [
        BuildRequest(id=label, case=case.document(), candidate=chosen.document())
        for label, (_, case, chosen) in items.items()
    ]
    results = {one.id: one for one in builder.build(requests, timeout_seconds=300, cancelled=lambda: False)}
    out: Items = {}
    for label, (name, case, _) in items.items():
        artifact = results[label].artifact
        assert artifact is not None, (label, results[label].rejection)
        out[label] = (name, case, artifact)
    return out


def test_reducers_count_each_contribution_once_in_every_layout(built: Items) -> None:
    bits: dict[str, set[bytes]] = {}
    for label, (name, case, artifact) in built.items():
        inputs = given(case)
        outputs = run(artifact, case, inputs)
        exact = {key: value.astype(np.float64) for key, value in inputs.items()}
        expected = PROBES[name].reference(exact, {**case.dims, **case.params})
        assert set(expected) == set(outputs)
        for output, (values, magnitude) in expected.items():
            off = np.abs(outputs[output] - values)
            bound = ROUNDING * np.maximum(magnitude, np.abs(values)) + 1e-37
            assert (off <= bound).all(), (label, output, float((off - bound).max()))
        bits.setdefault(name, set()).add(b"".join(outputs[output].tobytes() for output in sorted(outputs)))
    for name, one in PROBES.items():
        assert sum(label.startswith(f"{name} | ") for label in built) >= (3 if one.same_bits else 1), name
        if one.same_bits:
            assert len(bits[name]) == 1, f"{name}: {len(bits[name])} different results"


def test_reducers_pass_the_products_own_check(built: Items) -> None:
    """Two layouts of each on every input set: large offsets, infinities, NaN, denormals."""
    for name in PROBES:
        chosen = [label for label in built if label.startswith(f"{name} | ")][-2:]
        case = built[chosen[0]][1]
        for one in compute_oracle(case):
            for label in chosen:
                outputs = run(built[label][2], case, one.given.inputs)
                tally = Tally()
                for output, expected in one.expected.items():
                    got = rows_first(case, output, outputs[output])
                    compare_output(output, got, expected, np.empty(0, np.intp), tally)
                assert not tally.failures, (label, one.given.name, tally.first_failure)


def test_a_strict_fold_has_the_bits_of_a_left_fold(built: Items) -> None:
    terms: dict[str, Callable[[Inputs], np.ndarray]] = {
        "strict arrays": lambda v: v["A"] * v["x"],
        "a strict fold over several sites": lambda v: several_sites(v["x"], v["w"]),
    }
    chosen = {label: item for label, item in built.items() if item[0] in terms}
    assert len(chosen) == 6
    for label, (name, case, artifact) in chosen.items():
        inputs = given(case)
        contributions = terms[name](inputs)
        assert contributions.dtype == np.float32
        chain = np.add.accumulate(contributions, axis=-1, dtype=np.float32)[..., -1]
        np.testing.assert_array_equal(run(artifact, case, inputs)["y"], chain, err_msg=label)


def test_torch_operations_evaluate_the_same_programs() -> None:
    """The baseline of a program that names no torch call; integer reducers aside."""
    torch = pytest.importorskip("torch")
    from search.measuring.torch_program import NotExpressible, TorchProgram

    refused = []
    for name, one in PROBES.items():
        case = one.case()
        inputs = given(case)
        try:
            program = TorchProgram(case)
        except NotExpressible:
            refused.append(name)
            continue
        outputs = program(**{key: torch.from_numpy(value.copy()) for key, value in inputs.items()})
        exact = {key: value.astype(np.float64) for key, value in inputs.items()}
        for output, (values, magnitude) in one.reference(exact, {**case.dims, **case.params}).items():
            off = np.abs(outputs[output].numpy() - values)
            assert (off <= ROUNDING * np.maximum(magnitude, np.abs(values)) + 1e-37).all(), (name, output)
    assert len(refused) <= 1

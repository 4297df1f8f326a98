"""Deferred reducers compiled and run: every program against numpy sums written here, which share no code with the oracle.

A reference answers, for each output, its values in float64 and what its contributions amount to in magnitude: float32
rounding is a small part of that, while one contribution lost or counted twice is a large one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain

Inputs = Mapping[str, np.ndarray]
Reference = Callable[[Inputs, Mapping[str, int]], dict[str, tuple[np.ndarray, np.ndarray]]]
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
    "w32-p4": candidate(32, 32, 4, unroll=2),
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
    """``tensors``: ``"A:row,i,j x:j > y:row,i"``; dims that are given as params end in ``_``."""
    inputs, _, outputs = tensors.partition(">")
    declared: dict[str, Any] = {}
    for role, texts in (("input", inputs), ("output", outputs)):
        for text in texts.split():
            name, axes = text.split(":")
            declared[name] = {"axes": axes.split(","), "role": role}
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
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.close()


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


def test_reducers_count_each_contribution_once_in_every_layout(builder: Builder) -> None:
    items: dict[str, tuple[str, Case, Candidate]] = {}
    for name, one in PROBES.items():
        case = one.case()
        for label, chosen in CANDIDATES.items():
            if isinstance(build_schedule(replace(case, dims={**case.dims, "rows": 1}), chosen), Schedule):
                items[f"{name} | {label}"] = (name, case, chosen)
    requests = [
        BuildRequest(id=label, case=case.document(), candidate=chosen.document())
        for label, (_, case, chosen) in items.items()
    ]
    results = {one.id: one for one in builder.build(requests, timeout_seconds=300, cancelled=lambda: False)}
    bits: dict[str, set[bytes]] = {}
    for label, (name, case, _) in items.items():
        artifact = results[label].artifact
        assert artifact is not None, (label, results[label].rejection)
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
        assert sum(label.startswith(f"{name} | ") for label in items) >= 4, name
        if one.same_bits:
            assert len(bits[name]) == 1, f"{name}: {len(bits[name])} different results"

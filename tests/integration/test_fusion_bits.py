"""Fused is separate, to the bit, at equal knobs: the seed's list of programs, compiled both ways, run side by side."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.planning.build import build_schedule
from search.planning.schedule import Schedule
from search.program.case import Case
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain
ROWS = 5
COLUMNS = (65, 256, 4096)
SPREADS = ((2, 2, 1, 1), (4, 4, 2, 1), (8, 8, 1, 2), (16, 16, 1, 1), (8, 8, 4, 2), (16, 16, 2, 1), (8, 1, 1, 1))
"""W, L, V, P."""


def reduce(value: str, into: str = "total", op: str = "sum", over: tuple[str, ...] = ("col",)) -> dict[str, Any]:
    return {"reduce": {"into": into, "op": op, "over": list(over), "value": value}}


def store(value: str, tensor: str = "y", over: tuple[str, ...] = ("col",)) -> dict[str, Any]:
    return {"store": {"tensor": tensor, "over": list(over), "value": value}}


def folded(update: dict[str, Any], into: str = "total", **reducer: Any) -> list[dict[str, Any]]:
    name = f"{into}_fold"
    inner = update["loop"]["body"][0] if "loop" in update else update
    inner["update"]["reducer"] = name
    return [
        {"reducer": {"name": name, "op": "sum", **reducer}},
        update,
        {"finalize": {"reducer": name, "into": into}},
    ]


def update(value: str, **more: Any) -> dict[str, Any]:
    return {"update": {"over": ["col"], "value": value, **more}}


@dataclass(frozen=True, kw_only=True)
class Written:
    """A program, and how its inputs are kept."""

    body: list[dict[str, Any]]
    inputs: str | tuple[tuple[str, str], ...] = "cache"
    materialize: str = "private"
    ks: int = 3
    params: tuple[tuple[str, int], ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()
    """(output, the input whose buffer it shares) pairs."""


def again(trips: int) -> Written:
    """A later reader that runs ``trips`` times."""
    loop = {"loop": {"count": "trips", "body": [update("x * total")]}}
    return Written(body=[reduce("x"), *folded(loop, "more"), store("x + more")], params=(("trips", trips),))


PROGRAMS = {
    "the snapshot is kept": Written(body=[reduce("x"), store("x / total")]),
    "the snapshot is eliminated": Written(body=[reduce("x * x"), store("total", "s", ())], inputs=(("x", "cache"),)),
    "a write before": Written(body=[store("w * 2", "z"), reduce("x"), store("x - total")]),
    "writes between and after": Written(
        body=[reduce("x"), store("x * 2", "z"), reduce("x * total", "b"), store("x * b"), store("b", "s", ())]
    ),
    "filled edges": Written(
        body=[
            reduce("select(index(col) < 3 or index(col) >= cols - 2, 0.0, x)"),
            store("select(index(col) < 3, -1.0, x - total)"),
        ]
    ),
    "a condition and a seed": Written(
        body=[*folded(update("x * x", where="x > 0.25"), seed="0.5"), store("x * total")]
    ),
    "one of two inputs": Written(
        body=[store("r * 2", "z"), reduce("x"), store("x * r - total")], inputs=(("r", "reload"), ("x", "cache"))
    ),
    "two inputs": Written(body=[reduce("x * r"), reduce("abs(x) + r", "peak", "max"), store("x * peak + r / total")]),
    "a recomputed tile": Written(
        body=[{"tile": {"name": "t", "over": ["col"], "value": "x * x - w"}}, reduce("t"), store("t + total * x")],
        materialize="recompute",
    ),
    "a stage behind": Written(body=[reduce("x"), {"stage": {}}, store("x / total")]),
    "two axes, permuted": Written(
        body=[reduce("m", over=("col", "k")), store("m - total", "n", ("col", "k"))],
    ),
    "a unit axis": Written(body=[reduce("m[0, col]"), store("m[0, col] - total")], ks=1),
    "a strict fold later": Written(
        body=[reduce("x"), *folded(update("x * total"), "chain", order="strict"), store("x + chain")]
    ),
    "in place": Written(body=[reduce("x"), store("x / total")], in_place=(("y", "x"),)),
    "in place, and read again": Written(
        body=[reduce("x"), store("x / total"), store("x - total", "z")], in_place=(("y", "x"),)
    ),
    "no trip": again(0),
    "one trip": again(1),
    "three trips": again(3),
}
KERNELS = ("softmax", "rms_norm", "layer_norm")
TENSORS = {
    "x": (["row", "col"], "input"),
    "r": (["row", "col"], "input"),
    "w": (["col"], "input"),
    "m": (["row", "k", "col"], "input"),
    "y": (["row", "col"], "output"),
    "z": (["row", "col"], "output"),
    "n": (["row", "k", "col"], "output"),
    "s": (["row"], "output"),
}
AXES = {"row": "rows", "k": "ks", "col": "cols"}


def case_of(written: Written | str, columns: int) -> Case:
    if isinstance(written, str):
        return resolve_case({"kernel": written, "dims": {"rows": ROWS, "cols": columns}})
    text = repr(written.body).replace("'", " ").replace("[", " ").replace(",", " ").split()
    tensors = {name: declared for name, declared in TENSORS.items() if name in text}
    axes = [axis for axis in AXES if any(axis in declared for declared, _ in tensors.values())]
    document = {
        "name": "fused",
        "params": dict(written.params),
        "dims": [AXES[axis] for axis in axes],
        "axes": {axis: {"dim": AXES[axis], "kind": "row" if axis == "row" else "column"} for axis in axes},
        "tensors": {
            name: {"axes": declared, "role": role, "dtype": "float32"}
            | ({"aliases": dict(written.in_place)[name]} if name in dict(written.in_place) else {})
            for name, (declared, role) in tensors.items()
        },
        "body": written.body,
    }
    dims = {"rows": ROWS, "ks": written.ks, "cols": columns}
    return resolve_case({"program": document, "dims": {dim: dims[dim] for dim in document["dims"]}})


def twins() -> dict[str, tuple[Case, Candidate]]:
    """Label to a separate candidate; each program at one or two of the widths, each under a spread of its own."""
    spreads, out = cycle(SPREADS), {}
    for number, (name, written) in enumerate([*PROGRAMS.items(), *((kernel, kernel) for kernel in KERNELS)]):
        for turn in range(1 + number % 2):
            columns = COLUMNS[(number + turn) % len(COLUMNS)]
            width, lanes, vector, partials = next(spreads)
            kept = written if isinstance(written, Written) else Written(body=[])
            out[f"{name}, {columns} columns"] = (
                case_of(written, columns),
                Candidate(
                    width=width,
                    input=kept.inputs,
                    fusion="separate",
                    materialize=kept.materialize,
                    vector=vector,
                    unroll=1,
                    partials=partials,
                    mapping=CpuMapping(local_lanes=lanes, row_block=1, simd_scope="all", nontemporal=False),
                ),
            )
    return out


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.release()


def build(builder: Builder, wanted: dict[str, tuple[Case, Candidate]]) -> dict[str, Artifact]:
    requests = [BuildRequest(id=i, case=c.document(), candidate=k.document()) for i, (c, k) in wanted.items()]
    out = {}
    for result in builder.build(requests, timeout_seconds=120, cancelled=lambda: False):
        assert result.artifact is not None, (result.id, result.rejection)
        out[result.id] = result.artifact
    return out


def run(artifact: Artifact, case: Case, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = {
        t.name: inputs[t.aliases].copy() if t.aliases else np.full(case.shape(t), np.nan, np.float32)
        for t in case.program.tensors
        if t.role == "output"
    }
    arrays = inputs | outputs | {t.aliases: outputs[t.name] for t in case.program.tensors if t.aliases}
    arguments = [
        ctypes.c_int32(case.rows) if one.kind == "dim" else ctypes.c_void_p(arrays[one.name].ctypes.data)
        for one in artifact.arguments
    ]
    assert getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)(*arguments) == 0
    return outputs


def test_fused_is_separate_to_the_bit(builder: Builder) -> None:
    wanted = {}
    for label, (case, candidate) in twins().items():
        for fusion in ("separate", "fused"):
            made = replace(candidate, fusion=fusion)
            assert isinstance(build_schedule(case, made), Schedule), (label, build_schedule(case, made))
            wanted[f"{label}/{fusion}"] = (case, made)
    artifacts = build(builder, wanted)
    differing = 0
    for number, (label, (case, _)) in enumerate(twins().items()):
        numbers = np.random.default_rng(number)
        tensors = [t for t in case.program.tensors if t.role == "input"]
        inputs = {t.name: numbers.standard_normal(case.shape(t)).astype(np.float32) for t in tensors}
        separate, fused = artifacts[f"{label}/separate"], artifacts[f"{label}/fused"]
        differing += separate.artifact_sha256 != fused.artifact_sha256
        got = run(fused, case, inputs)
        for name, values in run(separate, case, inputs).items():
            np.testing.assert_array_equal(got[name].view(np.uint32), values.view(np.uint32), err_msg=f"{label}: {name}")
        for name, values in evaluate(case, inputs).items():
            np.testing.assert_allclose(got[name], values, rtol=1e-2, atol=1e-2, err_msg=f"{label}: {name}")
    assert differing > 0.9 * len(twins()), "fusion has to change the code"


def test_without_a_later_reader_fused_is_reload_to_the_instruction(builder: Builder) -> None:
    case = case_of(PROGRAMS["the snapshot is eliminated"], 65)
    _, fused = next(made for label, made in twins().items() if label.startswith("the snapshot is eliminated"))
    pair = {"reload": (case, replace(fused, input="reload")), "fused": (case, replace(fused, fusion="fused"))}
    made = build(builder, pair)
    assert made["fused"].artifact_sha256 == made["reload"].artifact_sha256

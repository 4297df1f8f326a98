"""Structured reducers through TileLang and gcc, against evaluations written here in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.measuring.checks import Tally, compare_output
from search.measuring.oracle import compute_oracle, rows_first
from search.program.case import Case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

pytestmark = pytest.mark.toolchain


def candidate(width: int, lanes: int | None = None, **knobs: Any) -> Candidate:
    mapping = {name: knobs.pop(name) for name in ("row_block", "simd_scope") if name in knobs}
    defaults = {
        "input": "reload",
        "fusion": "separate",
        "materialize": "private",
        "vector": 1,
        "unroll": 1,
        "partials": 1,
    }
    return Candidate(width=width, mapping=CpuMapping(local_lanes=lanes or width, **mapping), **{**defaults, **knobs})


CANDIDATES = {
    "w64-p4": candidate(64, partials=4, simd_scope="main"),
    "w8-v4-p2": candidate(8, vector=4, partials=2, unroll=2),
    "whole": candidate(8, lanes=1, simd_scope="all"),
    "half-rb2-v2": candidate(16, lanes=8, row_block=2, vector=2, partials=2),
    "cache-fused": candidate(16, input="cache", fusion="fused"),
}
AXES = {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}}


def program(name: str, body: list[dict[str, Any]], outputs: Mapping[str, list[str]]) -> dict[str, Any]:
    return {
        "name": name,
        "dims": ["rows", "cols"],
        "axes": AXES,
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input"},
            **{out: {"axes": axes, "role": "output"} for out, axes in outputs.items()},
        },
        "body": body,
    }


def stores(**values: str) -> list[dict[str, Any]]:
    return [{"store": {"tensor": name, "over": [], "value": value}} for name, value in values.items()]


PROGRAMS: dict[str, dict[str, Any]] = {
    "online": program(
        "online",
        [
            {"reduce": {"into": ["peak", "total"], "op": "online_softmax", "over": ["col"], "value": "x"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "exp(x - peak) / total"}},
            *stores(p="peak", t="total"),
        ],
        {"y": ["row", "col"], "p": ["row"], "t": ["row"]},
    ),
    "moments": program(
        "moments",
        [
            {"reducer": {"name": "r", "op": "welford"}},
            {"update": {"reducer": "r", "over": ["col"], "value": "x", "where": "index(col) > 2"}},
            {"update": {"reducer": "r", "over": [], "value": "0.5"}},
            {"update": {"reducer": "r", "over": ["col"], "value": "x", "where": "index(col) <= 2"}},
            {"finalize": {"reducer": "r", "into": ["count", "mean", "m2"]}},
            *stores(n="count", m="mean", v="m2"),
        ],
        {"n": ["row"], "m": ["row"], "v": ["row"]},
    ),
    "where": program(
        "where",
        [
            {"reduce": {"into": ["best", "at"], "op": "argmax", "over": ["col"], "value": "abs(x)"}},
            {"reducer": {"name": "r", "op": "argmax"}},
            {"update": {"reducer": "r", "over": ["col"], "value": "x", "where": "x < 1.0"}},
            {"finalize": {"reducer": "r", "into": ["below", "place"]}},
            *stores(b="best", a="cast(at, float32)", u="below", q="cast(place, float32)"),
        ],
        {"b": ["row"], "a": ["row"], "u": ["row"], "q": ["row"]},
    ),
}  # fmt: skip


def first_best(row: np.ndarray) -> int:
    nans = np.flatnonzero(np.isnan(row))
    return int(nans[0]) if len(nans) else int(np.argmax(row))


def online(row: np.ndarray) -> dict[str, Any]:
    peak = math.nan if np.isnan(row).any() else row.max()
    terms = np.exp(row - peak)
    return {"y": terms / terms.sum(), "p": peak, "t": terms.sum()}


def moments(row: np.ndarray) -> dict[str, Any]:
    every = np.append(row, 0.5)
    return {"n": len(every), "m": every.mean(), "v": ((every - every.mean()) ** 2).sum()}


def where(row: np.ndarray) -> dict[str, Any]:
    at = first_best(np.abs(row))
    below = np.flatnonzero(row < 1.0)  # not NaN
    place = int(below[np.argmax(row[below])]) if len(below) else 2**31 - 1
    return {"b": abs(row[at]), "a": at, "u": row[place] if len(below) else -math.inf, "q": float(np.float32(place))}


DEFINITIONS: dict[str, Callable[[np.ndarray], dict[str, Any]]] = {"online": online, "moments": moments, "where": where}


def rows_of(cols: int) -> np.ndarray:
    """Ordinary rows, an offset, ties, and edges."""
    generator = np.random.default_rng(cols)
    rows = generator.normal(size=(19, cols)).astype(np.float32)
    rows[1] += 1000
    rows[2] = np.round(rows[2])
    rows[3] = 0.25
    rows[4] = -np.inf
    rows[5, ::2] = -np.inf
    rows[6, -1] = np.inf
    rows[7, cols // 2 :] = np.nan
    rows[8] = -np.inf
    rows[8, -1] = 3.0
    rows[9, 0] = np.inf
    rows[10] = 1e-40
    rows[11] = np.where(np.arange(cols) % 3 == 0, -np.inf, 2.0)
    rows[12] = generator.normal(size=cols) * 1e18
    return rows


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("store"))
    yield made
    made.release()


def call(artifact: Artifact, case: Case, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    function = getattr(ctypes.CDLL(artifact.library_path), artifact.symbol)
    buffers = {t.name: np.full(case.shape(t), -7.25e33, np.float32) for t in case.program.tensors}
    for name, values in inputs.items():
        buffers[name][...] = values
    pointers = [
        ctypes.c_int32(case.rows) if a.kind == "dim" else ctypes.c_void_p(buffers[a.name].ctypes.data)
        for a in artifact.arguments
    ]
    assert function(*pointers) == 0
    return {name: values for name, values in buffers.items() if name not in inputs}


def built(builder: Builder, requests: list[BuildRequest]) -> dict[str, Artifact]:
    results = list(builder.build(requests, timeout_seconds=120, cancelled=lambda: False))
    assert {result.id: result.rejection for result in results if result.artifact is None} == {}
    assert len(results) == len(requests)
    return {result.id: result.artifact for result in results if result.artifact is not None}


def test_structured_reducers(builder: Builder) -> None:
    """257 columns: full passes, some at a time and one by one, and a tail that most lanes have no element of."""
    cols = 257
    x = rows_of(cols)
    cases = {
        name: resolve_case({"program": document, "dims": {"rows": len(x), "cols": cols}})
        for name, document in PROGRAMS.items()
    }
    requests = [
        BuildRequest(id=f"{name} {key}", case=case.document(), candidate=made.document())
        for name, case in cases.items()
        for key, made in CANDIDATES.items()
        if key != "cache-fused" or name == "online"
    ]
    for label, artifact in built(builder, requests).items():
        name = label.split()[0]
        found = call(artifact, cases[name], {"x": x})
        with np.errstate(all="ignore"):
            wanted = [DEFINITIONS[name](row.astype(np.float64)) for row in x]
        for output, values in found.items():
            expected = np.asarray([row[output] for row in wanted])
            # the largest magnitude of a row is what sums round at
            scale = 4e-6 * np.max(np.where(np.isfinite(x), np.abs(x), 0), axis=1)
            if output == "v":
                scale = scale * scale * 1e5
            with np.errstate(all="ignore"):
                shape = (-1,) + (1,) * (expected.ndim - 1)
                near = (
                    np.abs(values - expected) <= np.maximum(2e-6 * np.abs(expected), scale.reshape(shape))
                    if output in "mv"
                    else np.abs(values - expected) <= 4e-6 * np.abs(expected) + 1e-37
                )
            same = near | (values == expected) | (np.isnan(values) & np.isnan(expected))
            assert same.all(), (label, output, np.argwhere(~same)[:4], values[~same][:4], expected[~same][:4])


ALGORITHMS = {
    "softmax": {"online": {"output": candidate(32, materialize="output", simd_scope="all")}},
    "masked_softmax": {"online": {"whole": candidate(8, lanes=1, simd_scope="main")}},
    "row_logsumexp": {"online": {"p4": candidate(16, partials=4)}},
    "layer_norm": {
        "welford": {
            "fused": candidate(16, input="cache", fusion="fused", simd_scope="all"),
            "v4-p2": candidate(8, vector=4, partials=2, materialize="recompute"),
        }
    },
    "row_variance": {"welford": {"half-rb2": candidate(16, lanes=8, row_block=2)}},
}


def test_algorithms_pass_the_check_of_the_program_as_written(builder: Builder) -> None:
    """Every input set of the product's check: an offset of 1000 and edge rows among them."""
    cases = {name: resolve_case({"kernel": name, "dims": {"rows": 19, "cols": 769}}) for name in ALGORITHMS}
    requests = [
        BuildRequest(
            id=f"{name} {word} {label}",
            case=cases[name].document(),
            candidate=replace(made, algorithm=word).document(),
        )
        for name, words in ALGORITHMS.items()
        for word, candidates in words.items()
        for label, made in candidates.items()
    ]
    for label, artifact in built(builder, requests).items():
        case = cases[label.split()[0]]
        for given in compute_oracle(case):
            outputs = call(artifact, case, given.given.inputs)
            tally = Tally()
            for name, expected in given.expected.items():
                got = rows_first(case, name, outputs[name])
                compare_output(name, got, expected, np.flatnonzero(got == np.float32(-7.25e33)), tally)
            assert not tally.failures, f"{label} {given.given.name}: {tally.first_failure}"
            assert tally.elements > 0

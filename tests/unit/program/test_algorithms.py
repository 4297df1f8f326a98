"""What other algorithms match, what they make of it, and what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.demand import demand
from search.planning.schedule import Collective, DistributedLoop, Schedule
from search.program.algorithms import algorithms, rewritten
from search.program.case import Case
from search.program.document import dump_program
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.program.verify import verify
from search.space.candidate import Candidate, CpuMapping


def reduce(into: str, op: str, value: str, over: str = "col") -> dict[str, Any]:
    return {"reduce": {"into": into, "op": op, "over": [over], "value": value}}


def tile(name: str, value: str) -> dict[str, Any]:
    return {"tile": {"name": name, "over": ["col"], "value": value}}


def row(value: str) -> dict[str, Any]:
    return {"store": {"tensor": "s", "over": [], "value": value}}


def columns(value: str) -> dict[str, Any]:
    return {"store": {"tensor": "y", "over": ["col"], "value": value}}


def let(name: str, value: str) -> dict[str, Any]:
    return {"let": {"name": name, "value": value}}


STAGE: dict[str, Any] = {"stage": {}}
PEAK, TOTAL = reduce("peak", "max", "x"), reduce("total", "sum", "exp(x - peak)")
SUM, MEAN = reduce("all", "sum", "x"), let("mean", "all / cols")
SQUARES = reduce("squares", "sum", "(x - mean) * (x - mean)")


def predicated(name: str, op: str, value: str, where: str) -> list[dict[str, Any]]:
    return [
        {"reducer": {"name": f"{name}_r", "op": op}},
        {"update": {"reducer": f"{name}_r", "over": ["col"], "value": value, "where": where}},
        {"finalize": {"reducer": f"{name}_r", "into": name}},
    ]


MATCHES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "logsumexp": ("online", [PEAK, TOTAL, row("log(total) + peak")]),
    "guarded logsumexp": (
        "online",
        [
            PEAK,
            let("shift", "select(abs(peak) == inf, 0.0, peak)"),
            reduce("total", "sum", "exp(x - shift)"),
            row("shift + log(total)"),
        ],
    ),
    "log_softmax": (
        "online",
        [PEAK, tile("d", "x - peak"), reduce("total", "sum", "exp(d)"), columns("d - log(total)")],
    ),
    "masked": (
        "online",
        [
            tile("m", "select(r > 0.0, x, -inf)"),
            reduce("peak", "max", "m"),
            tile("e", "exp(m - peak)"),
            reduce("total", "sum", "e"),
            columns("e / total"),
        ],
    ),
    "only some contribute": (
        "online",
        [
            *predicated("peak", "max", "x", "r > 0.0"),
            *predicated("total", "sum", "exp(x - peak)", "r > 0.0"),
            row("peak + log(total)"),
        ],
    ),
    "variance": ("welford", [SUM, MEAN, SQUARES, row("squares / cols")]),
    "mean and variance": (
        "welford",
        [
            SUM,
            MEAN,
            tile("c", "x - mean"),
            reduce("squares", "sum", "c * c"),
            columns("c / sqrt(squares)"),
            row("mean"),
        ],
    ),
    "two of them": (
        "online",
        [
            PEAK,
            TOTAL,
            reduce("peak2", "max", "r"),
            reduce("total2", "sum", "exp(r - peak2)"),
            row("log(total) + log(total2)"),
        ],
    ),
}
ALONE: dict[str, list[dict[str, Any]]] = {
    "another peak": [PEAK, reduce("other", "max", "r"), reduce("total", "sum", "exp(x - other)"), row("total + peak")],
    "another value": [PEAK, reduce("total", "sum", "exp(r - peak)"), row("total")],
    "a stage between": [PEAK, STAGE, TOTAL, row("total")],
    "a store between": [PEAK, columns("x - peak"), TOTAL, row("total")],
    "another condition": [PEAK, *predicated("total", "sum", "exp(x - peak)", "r > 0.0"), row("total")],
    "minimum": [reduce("peak", "min", "x"), TOTAL, row("total")],
    "the sum is read": [SUM, MEAN, SQUARES, row("squares + all")],
    "another divisor": [SUM, let("mean", "all / 7"), SQUARES, row("squares / cols")],
    "one-pass variance": [SUM, MEAN, reduce("squares", "sum", "x * x"), row("squares / cols - mean * mean")],
    "a seed": [
        {"reducer": {"name": "m", "op": "max", "seed": "1.0"}},
        {"update": {"reducer": "m", "over": ["col"], "value": "x"}},
        {"finalize": {"reducer": "m", "into": "peak"}},
        TOTAL,
        row("total"),
    ],
    "two sites": [
        {"reducer": {"name": "m", "op": "max"}},
        {"update": {"reducer": "m", "over": ["col"], "value": "x"}},
        {"update": {"reducer": "m", "over": ["col"], "value": "r"}},
        {"finalize": {"reducer": "m", "into": "peak"}},
        TOTAL,
        row("total"),
    ],
}


def evaluated(case: Case) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    inputs = {
        t.name: generator.normal(size=case.shape(t)).astype(np.float32)
        for t in case.program.tensors
        if t.role == "input"
    }
    inputs["x"][1], inputs["x"][2, 3], inputs["x"][3, 4] = -np.inf, np.inf, np.nan
    return evaluate(case, inputs)


def candidate(algorithm: Any, **knobs: Any) -> Candidate:
    plain = {"fusion": "separate", "materialize": "output", "vector": 1, "unroll": 1, "partials": 2, "input": "reload"}
    return Candidate(width=8, mapping=CpuMapping(local_lanes=8), algorithm=algorithm, **{**plain, **knobs})


@pytest.mark.parametrize("name", MATCHES)
def test_matched_by_structure_and_equal_in_value(name: str, program_case: Any) -> None:
    word, body = MATCHES[name]
    case = program_case(*body, rows=5)
    assert algorithms(case.program) == ("written", word)
    made = rewritten(case.program, word)
    assert made is not None
    assert verify(made) == ()
    assert any(word[:6] in str(statement) for statement in dump_program(made)["body"])
    expected = evaluated(case)
    for output, values in evaluated(Case(**{**vars(case), "program": made})).items():
        np.testing.assert_allclose(values, expected[output], rtol=1e-12)


@pytest.mark.parametrize("name", ALONE)
def test_left_as_written(name: str, program_case: Any) -> None:
    case = program_case(*ALONE[name])
    assert algorithms(case.program) == ("written",)
    rejected = build_schedule(case, candidate("online"))
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.detail["allowed"]) == ("algorithm_not_applicable", ["written"])


def test_long_chains_of_tiles_are_not_written_out(program_case: Any) -> None:
    """Each link reads the last one twice: 2^40 nodes if anyone tried."""
    chain = [tile("link0", "x")] + [tile(f"link{n}", f"link{n - 1} + link{n - 1}") for n in range(1, 41)]
    case = program_case(
        *chain, reduce("peak", "max", "link40"), reduce("total", "sum", "exp(link40 - peak)"), row("total")
    )
    assert algorithms(case.program) == ("written", "online")


def test_the_plan_has_one_pass_less_and_all_components() -> None:
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 4, "cols": 100}})
    written, online = build_schedule(case, candidate("written")), build_schedule(case, candidate("online"))
    assert isinstance(written, Schedule)
    assert isinstance(online, Schedule)
    assert [sum(isinstance(s, DistributedLoop) for s in schedule.steps) for schedule in (written, online)] == [3, 2]
    (collective,) = [step for step in online.steps if isinstance(step, Collective)]
    assert collective.results == ("peak", "total")
    # one tree of three rounds for both components, where two reductions took one each
    assert (demand(written).per_lane.collective_rounds, demand(online).per_lane.collective_rounds) == (6, 3)
    # 2 partials: of max and sum, and of both components of the one
    assert written.partial_scalars == online.partial_scalars == 4
    # the exponential is computed again from the input, so nothing is staged in the output
    assert (online.private_scalars, online.staged_tiles) == (0, ())
    assert demand(online).per_lane.global_write_bytes < demand(written).per_lane.global_write_bytes


def test_documents_name_an_algorithm_only_if_it_is_another() -> None:
    assert "algorithm" not in candidate("written").document()
    assert candidate("online").document()["algorithm"] == "online"
    for word in ("written", "online"):
        assert Candidate.from_document(candidate(word).document()) == candidate(word)

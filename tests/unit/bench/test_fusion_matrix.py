"""The fusion matrix has the seed's rows, orders and arms, and its ratios are those of visits that are known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "fusion_matrix.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_fusion_matrix", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_seeds_rows(bench: Any) -> None:
    rows = list(bench.rows_of())
    matrix = [row for row in rows if row.part == "matrix"]
    assert len(matrix) == 15 * 2
    assert sum(row.triggered for row in matrix) == 8 * 2
    assert sum(len(bench.orders(row)) * len(row.arms) for row in matrix) == 120
    native = [row for row in rows if row.part == "native"]
    assert sum(len(bench.orders(row)) * len(row.arms) for row in native) == 72
    assert {row.mapping for row in rows} == {"whole-program", "packet-local"}


def test_some_rows_only(bench: Any) -> None:
    rows = list(bench.rows_of(["rms_norm"], ["64x256"]))
    assert [(row.part, row.mapping) for row in rows] == [
        ("matrix", "whole-program"),
        ("matrix", "packet-local"),
        ("native", "whole-program"),
        ("native", "packet-local"),
    ]


def test_arms_differ_in_fusion_alone(bench: Any) -> None:
    for row in bench.rows_of():
        documents = [row.candidate(arm).document() for arm in row.arms]
        assert all({**one, "fusion": None} == {**documents[0], "fusion": None} for one in documents)
        fused = [arm for arm in row.arms if row.candidate(arm).fusion == "fused"]
        assert fused == (["fused"] if row.triggered else [])
        assert bench.arm_id(row, "again") == bench.arm_id(row, "separate"), "a control is the same machine code"


def test_the_rule_applies_where_the_seed_says(bench: Any) -> None:
    for row in bench.rows_of():
        case = bench.case_of(row.kernel, row.shape)
        assert case.rows == int(row.shape.split("x")[0])
        if row.triggered:
            assert bench.fusion_here(case, row) == "admitted"


def test_an_odd_rope_is_refused_by_its_shape(bench: Any) -> None:
    case = bench.case_of("rope", "17x66")
    assert case.dims == {"rows": 17, "parts": 2, "half": 33}


def visit(order: int, arm: str, seconds: float) -> dict[str, Any]:
    return {
        "order": order,
        "arm": arm,
        "timing": {p: {"median_seconds": seconds} for p in ("device_batch", "e2e_batch")},
    }


def test_ratios_are_paired_within_an_order(bench: Any) -> None:
    row = next(bench.rows_of(["rms_norm"], ["17x65"]))
    visits = [
        visit(0, "separate", 2.0),
        visit(0, "fused", 3.0),
        visit(1, "fused", 8.0),
        visit(1, "separate", 4.0),
    ]
    found = bench.summary(row, visits)["device_batch"]
    assert found["seconds"] == {"separate": 3.0, "fused": 5.5}
    ratio = found["ratios"]["fused/separate"]
    assert (ratio["ratios"], ratio["median"], ratio["class"]) == ([1.5, 2.0], 1.75, "positive")
    reported = [
        {"part": "matrix", "case": "c", "mapping": "m", "phases": {"device_batch": found}},
        {
            "part": "matrix",
            "case": "d",
            "mapping": "m",
            "phases": {"device_batch": {"ratios": {"again/separate": ratio}}},
        },
    ]
    assert bench.losses(reported) == ["matrix c m device_batch"], "a control is no loss"

"""The size and depth of programs: every setting refuses what is beyond it, and takes what is at it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tuner_service.api.documented import PROGRAM_EXAMPLE
from tuner_service.settings import Settings, describe

LIMITS = {
    "max_program_statements": (3, "/cases/0/program/body"),
    "max_program_tensors": (2, "/cases/0/program/tensors"),
    "max_expression_characters": (30, "/cases/0/program/body/2/store/value"),
    "max_expression_depth": (4, "/cases/0/program/body/2/store/value"),
    "max_expression_nodes": (9, "/cases/0/program/body/2/store/value"),
}
"""Setting → what the example program needs, and the place of what is too large."""


def plan(serve: Any, data_dir: Path, program: Any, **settings: int) -> list[str]:
    body = {"cases": [{"program": program, "dims": {"rows": 2, "cols": 9}}], "space": {"width": [8]}}
    with serve(data_dir, **settings) as served:
        response = served.http.post("/v1/plans", json=body)
        if response.status_code == 200:
            return []
        assert response.status_code == 422, response.text
        return [error["field"] for error in response.json()["errors"]]


def test_a_program_at_every_limit_is_taken(serve: Any, tmp_path: Path) -> None:
    assert plan(serve, tmp_path, PROGRAM_EXAMPLE, **{name: needed for name, (needed, _) in LIMITS.items()}) == []


@pytest.mark.parametrize("name", LIMITS)
def test_a_program_beyond_a_limit_is_refused_where_it_is(serve: Any, tmp_path: Path, name: str) -> None:
    needed, field = LIMITS[name]
    assert field in plan(serve, tmp_path, PROGRAM_EXAMPLE, **{name: needed - 1})


def test_loops_can_be_forbidden(serve: Any, tmp_path: Path) -> None:
    program = copy.deepcopy(PROGRAM_EXAMPLE)
    program["body"][:1] = [
        {"reducer": {"name": "lows", "op": "min"}},
        {"loop": {"count": "rows", "body": [{"update": {"reducer": "lows", "over": ["col"], "value": "x"}}]}},
        {"finalize": {"reducer": "lows", "into": "low"}},
    ]
    assert "/cases/0/program/body/1/loop/body" in plan(serve, tmp_path, program, max_loop_depth=0)


def test_every_limit_of_programs_is_a_described_setting(tmp_path: Path) -> None:
    described = {row.name: row.variable for row in describe(Settings(data_dir=tmp_path))}
    for name in (*LIMITS, "max_loop_depth", "max_dim", "max_tensor_bytes", "max_body_bytes"):
        assert described[name] == f"TUNER_{name.upper()}"

"""Several rows at a time may be refused; one row at a time is always in the space beside them, and not for its rows."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))

from random_programs import random_program

from search.planning.plan import PlannedCandidate, plan_case
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping
from search.space.resolve import resolve_space

KNOB: Any = {"cpu": ("row_block", (2, 4)), "cuda": ("rows_per_block", (2, 4, 8, 16, 32))}
OTHERS: Any = {
    "width": st.lists(st.sampled_from([1, 32, 128, 1024]), min_size=1, max_size=2, unique=True),
    "input": st.just(["reload", "cache"]),
    "vector": st.sampled_from([[1], [2], [8]]),
    "partials": st.sampled_from([[1], [2]]),
    "materialize": st.sampled_from([["private"], ["recompute"]]),
}


def alone(candidate: Candidate) -> Candidate:
    """The same with one row at a time."""
    mapping: Any = candidate.mapping
    one = {"row_block": 1} if isinstance(mapping, CpuMapping) else {"rows_per_block": 1}
    return replace(candidate, mapping=replace(mapping, **one))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_one_row_at_a_time_is_left(target: Any, data: st.DataObject) -> None:
    chance = data.draw(st.randoms(use_true_random=False))
    assert isinstance(chance, random.Random)
    case = resolve_case({"program": random_program(chance), "dims": {"rows": 3, "ni": 2, "nj": 70}})
    name, rows = KNOB[target]
    lists = {knob: data.draw(values) for knob, values in OTHERS.items()}
    lists[name] = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=2, unique=True))
    if target == "cpu":
        lists |= {"simd_scope": ["none"], "nontemporal": [False]}
    space = resolve_space(lists, case, target)
    assert sorted(space.lists[name]) == sorted({1, *lists[name]})
    budget = data.draw(st.sampled_from([1, 8, 64]))
    planned = {one.candidate: one for one in plan_case(case, space, budget_scalars=budget) if one.in_space}
    assert len(planned) == space.size
    for candidate, several in planned.items():
        one = planned[alone(candidate)]
        assert _reason(one) != "threads_per_block"
        assert several.rejection is not None or one.rejection is None, "what several rows may do, one may"


def _reason(planned: PlannedCandidate) -> str | None:
    return planned.rejection and planned.rejection.reason


@pytest.mark.parametrize(("target", "refused"), [("cpu", "private_budget"), ("cuda", "threads_per_block")])
def test_where_several_are_refused_one_goes_on(target: Any, refused: str) -> None:
    case = resolve_case({"kernel": "softmax", "dims": {"rows": 8, "cols": 64}})
    name, _ = KNOB[target]
    lists = {"width": [64 if target == "cpu" else 1024], name: [4], "input": ["cache"], "materialize": ["private"]}
    planned = plan_case(case, resolve_space(lists, case, target), budget_scalars=7)
    found = {(one.candidate.row_block, _rows(one.candidate), _reason(one)) for one in planned if one.in_space}
    assert {reason for *_, reason in found} == {None, refused}
    assert {max(block, rows) for block, rows, reason in found if reason is None} == {1}
    assert {max(block, rows) for block, rows, reason in found if reason is not None} == {4}


def _rows(candidate: Candidate) -> int:
    return int(getattr(candidate.mapping, "rows_per_block", 1))

"""The demo's job is a real search: at least 24 candidates a case, some rejected, some left, none like the miss."""

from __future__ import annotations

import pytest

from search.planning.plan import PlannedCandidate, plan_case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space
from tuner_service.cli.demo_job import KERNELS, MISSING_ROWS, SHAPES, demo_request


def plans(case_request: dict[str, object], space: dict[str, list[object]]) -> list[PlannedCandidate]:
    case = resolve_case(case_request)
    return [p for p in plan_case(case, resolve_space(space, case=case, target="cpu")) if p.in_space]


def test_it_covers_three_kernels_at_four_shapes() -> None:
    request = demo_request()
    asked = {(case["kernel"], case["dims"]["rows"], case["dims"]["cols"]) for case in request["cases"]}
    assert asked == {(kernel, *shape) for kernel in ("softmax", "rms_norm", "layer_norm") for shape in SHAPES}
    assert SHAPES == ((64, 256), (23, 769), (128, 8193), (1024, 4096))
    assert len(KERNELS) == 3
    assert MISSING_ROWS not in {rows for rows, _ in SHAPES}


@pytest.mark.parametrize("index", range(12))
def test_every_case_has_a_joint_space_with_rejections_only_by_the_budget(index: int) -> None:
    request = demo_request()
    planned = plans(request["cases"][index], request["space"])
    assert len(planned) >= 24
    rejected = [p.rejection for p in planned if p.rejection is not None]
    assert {r.reason for r in rejected} <= {"private_budget"}
    left = [p.candidate for p in planned if p.rejection is None]
    assert len(left) >= 12
    assert {c.width for c in left} == {16, 32, 64}


def test_the_large_rows_break_the_budget_somewhere() -> None:
    request = demo_request()
    for case in request["cases"]:
        if case["dims"]["cols"] >= 4096:
            assert any(p.rejection is not None for p in plans(case, request["space"]))


def test_the_small_variant_is_the_same_search_with_less() -> None:
    small = demo_request(small=True)
    assert {case["kernel"] for case in small["cases"]} == set(KERNELS)
    assert set(small["space"]) == set(demo_request()["space"])
    for case in small["cases"]:
        assert 4 <= len(plans(case, small["space"])) <= 12

"""Ownership, the private budget and the score."""

import pytest

from search.errors import InvalidInput
from search.planning.budget import check_budget, validate_budget
from search.planning.build import build_schedule
from search.planning.cost import CostFacts, LinearCostPolicy
from search.planning.demand import Access, Demand, demand
from search.planning.ownership import allocated, stripe, tree_rounds


@pytest.mark.parametrize(
    ("extent", "lanes", "vector", "stripes", "storage"),
    [(8193, 256, 1, 33, 33), (8193, 512, 4, 17, 20), (1, 64, 16, 1, 16), (769, 32, 4, 25, 28), (64, 64, 1, 1, 1)],
)
def test_stripes(extent, lanes, vector, stripes, storage):
    assert (stripe(extent, lanes), allocated(extent, lanes, vector)) == (stripes, storage)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5, 8, 1024])
def test_tree_rounds_halve_down_to_one(lanes):
    rounds, left = 0, lanes
    while left > 1:
        rounds, left = rounds + 1, (left + 1) // 2
    assert tree_rounds(lanes) == rounds


@pytest.mark.parametrize(
    ("kernel", "width", "scalars"),
    [
        ("softmax", 256, 66),
        ("layer_norm", 256, 66),
        ("softmax", 512, 34),
        ("layer_norm", 512, 34),
        ("rms_norm", 256, 33),
    ],
)
def test_8193_columns_cached(kernel, width, scalars, kernel_case, cpu):
    schedule = build_schedule(kernel_case(kernel, cols=8193), cpu(width, input="cache", vector=4))
    assert schedule.private_scalars == scalars
    rejected = check_budget(schedule, 64)
    assert (rejected is None) == (scalars <= 64)
    assert check_budget(schedule, scalars) is None
    assert check_budget(schedule, scalars - 1).reason == "private_budget"
    assert check_budget(schedule, None) is None


def test_the_rejection_shows_every_tiles_share(kernel_case, cpu):
    schedule = build_schedule(kernel_case("softmax", cols=100), cpu(8, input="cache", row_block=2))
    detail = check_budget(schedule, 0).detail
    assert (detail["private_scalars"], detail["budget_scalars"], detail["row_block"]) == (52, 0, 2)
    assert {tile["name"]: tile["stripe_scalars"] for tile in detail["tiles"]} == {"x_snapshot": 13, "e": 13}


@pytest.mark.parametrize("budget", [-1, True, 1.0, "64", [64], float("nan")])
def test_a_bad_budget_is_refused(budget):
    with pytest.raises(InvalidInput) as caught:
        validate_budget(budget)
    (problem,) = caught.value.problems
    assert problem.field == "/private_budget_scalars"
    assert problem.allowed


@pytest.mark.parametrize("budget", [0, 64, 10**9, None])
def test_a_good_budget_is_kept(budget):
    assert validate_budget(budget) == budget


def score(schedule, policy):
    candidate = schedule.candidate
    return policy.score(
        CostFacts(
            demand=demand(schedule),
            width=candidate.width,
            lanes_per_row=schedule.lanes_per_row,
            private_scalars=schedule.private_scalars,
        )
    )


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize(("g", "p"), [(0, 0), (0.25, 0), (0, 0.5), (1 / 8, 1 / 16)])
def test_cache_costs_8_minus_32g_plus_96p(kernel, g, p, kernel_case, cpu):
    policy = LinearCostPolicy(global_byte=g, private_byte=p)
    reload, cache = (
        score(build_schedule(kernel_case(kernel), cpu(512, vector=4, input=word)), policy)
        for word in ("reload", "cache")
    )
    assert cache - reload == pytest.approx(8 - 32 * g + 96 * p)


def test_whole_program_lanes_share_the_packet(kernel_case, cpu):
    case = kernel_case("rms_norm", cols=64)
    assert score(build_schedule(case, cpu(8, local_lanes=1)), LinearCostPolicy()) == 2 * 64 / 8
    assert score(build_schedule(case, cpu(8)), LinearCostPolicy()) == 2 * 8 + 3


def test_unknown_demand_has_no_score():
    unknown = Demand(available=False, per_program=Access(), per_lane=Access())
    facts = CostFacts(demand=unknown, width=8, lanes_per_row=8, private_scalars=0)
    assert LinearCostPolicy().score(facts) is None


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None, True])
@pytest.mark.parametrize("name", ["global_byte", "private_byte"])
def test_bad_coefficients_are_refused(name, value):
    with pytest.raises(InvalidInput) as caught:
        LinearCostPolicy(**{name: value})
    assert [problem.field for problem in caught.value.problems] == [f"/{name}"]

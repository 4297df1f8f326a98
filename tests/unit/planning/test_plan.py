"""Plans of whole cases, and the default among them."""

import json
from collections import Counter

import pytest

from search.errors import InvalidInput
from search.planning.default import default_candidate
from search.planning.plan import plan_candidate, plan_case
from search.space.candidate import CpuMapping
from search.space.resolve import resolve_space


def planned(case, space, **options):
    return list(plan_case(case, resolve_space(space, case, "cpu"), **options))


def test_every_candidate_appears_once_in_order(kernel_case):
    case = kernel_case("softmax", 64, 256)
    space = resolve_space({}, case, "cpu")
    items = list(plan_case(case, space))
    assert [item.candidate for item in items] == list(space.candidates())
    assert Counter(item.rejection.reason for item in items if item.rejection) == {"nontemporal_width": 12}
    assert len(items) == space.size == 96


def test_the_default_is_marked_where_it_stands(kernel_case):
    items = planned(kernel_case("softmax", 64, 256), {})
    (default,) = [item for item in items if item.is_default]
    assert default.in_space
    assert default.candidate.materialize == "output"


def test_a_default_outside_the_space_comes_last(kernel_case):
    items = planned(kernel_case("softmax", 64, 256), {"width": [8, 16]})
    assert [item.in_space for item in items] == [True] * (len(items) - 1) + [False]
    assert [item.is_default for item in items] == [False] * (len(items) - 1) + [True]
    assert items[-1].candidate.width == 32


def test_over_budget_keeps_its_numbers(kernel_case):
    items = planned(kernel_case("softmax", 4, 4096), {"materialize": ["private"], "nontemporal": [False]})
    rejected = [item for item in items if item.in_space and item.rejection]
    assert {item.rejection.reason for item in rejected} == {"private_budget"}
    assert all(item.plan.private_scalars > 64 and item.schedule is not None for item in rejected)


def test_an_illegal_candidate_has_no_plan(kernel_case, cpu):
    item = plan_candidate(kernel_case("softmax"), cpu(8, nontemporal=True))
    assert (item.plan, item.schedule, item.rejection.reason) == (None, None, "nontemporal_width")


def test_no_budget_accepts_every_legal_candidate(kernel_case):
    case = kernel_case("softmax", 4, 8193)
    assert all(i.rejection is None for i in planned(case, {"nontemporal": [False]}, budget_scalars=None))
    assert any(i.rejection is not None for i in planned(case, {"nontemporal": [False]}, budget_scalars=0))


def test_a_bad_budget_is_refused_before_the_first_candidate(kernel_case):
    case = kernel_case("softmax")
    with pytest.raises(InvalidInput):
        plan_case(case, resolve_space({}, case, "cpu"), budget_scalars=-1)


def test_json_is_the_contracts(kernel_case, cpu):
    document = plan_candidate(kernel_case("softmax", 4, 8193), cpu(256, input="cache")).document()
    assert json.loads(json.dumps(document)) == document
    assert (document["outcome"], document["stage"], document["reason"]) == ("rejected", "constraints", "private_budget")
    assert set(document["plan"]) == {"private_scalars", "allocated_scalars", "partial_scalars", "score", "demand"}
    assert document["candidate"]["mapping"]["local_lanes"] == 256


class TestDefaults:
    def test_cpu_stages_where_it_can(self, kernel_case):
        made = default_candidate(kernel_case("softmax"), "cpu")
        assert (made.width, made.input, made.fusion, made.materialize) == (32, "reload", "separate", "output")
        assert (made.vector, made.unroll, made.partials) == (1, 1, 1)
        assert made.mapping == CpuMapping(local_lanes=32)

    def test_cpu_recomputes_where_it_cannot(self, program_case):
        case = program_case(
            {"tile": {"name": "a", "over": ["col"], "value": "x * 2"}},
            {"reduce": {"into": "t", "op": "sum", "over": ["col"], "value": "a"}},
            {"store": {"tensor": "s", "over": [], "value": "t"}},
        )
        assert default_candidate(case, "cpu").materialize == "recompute"

    def test_without_tiles_it_has_the_inert_value(self, kernel_case):
        case = kernel_case("rms_norm")
        made = default_candidate(case, "cpu")
        assert made.materialize == "private"
        assert made in set(resolve_space({}, case, "cpu").candidates())

    @pytest.mark.parametrize(
        ("kernel", "cols", "word"),
        [("softmax", 8192, "cache"), ("softmax", 8193, "reload"), ("rms_norm", 8193, "cache")],
    )
    def test_cuda_caches_what_fits(self, kernel, cols, word, kernel_case):
        made = default_candidate(kernel_case(kernel, cols=cols), "cuda")
        assert (made.width, made.input, made.materialize) == (256, word, "private")

    def test_cuda_reloads_where_nothing_can_be_cached(self, program_case):
        case = program_case({"store": {"tensor": "y", "over": ["col"], "value": "x * 2"}})
        assert default_candidate(case, "cuda").input == "reload"

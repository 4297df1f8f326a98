"""A caller's space: what is taken, what is refused and how."""

from dataclasses import replace

import pytest

from search.errors import InvalidInput
from search.planning.plan import plan_case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space


def refused(document, case, target="cpu", pointer="/space"):
    with pytest.raises(InvalidInput) as caught:
        resolve_space(document, case, target, pointer=pointer)
    return caught.value.problems


@pytest.fixture
def softmax(kernel_case):
    return kernel_case("softmax", 64, 256)


def test_missing_knobs_take_the_default_lists(softmax):
    space = resolve_space({"width": [16]}, softmax, "cpu")
    assert space.document()["width"] == [16]
    assert space.document()["simd_scope"] == ["none", "main", "all"]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"widht": [8]}, "/space/widht"),
        ({"a/b~c": [8]}, "/space/a~1b~0c"),
        ({"width": []}, "/space/width"),
        ({"width": 8}, "/space/width"),
        ({"width": None}, "/space/width"),
        ({"width": "8"}, "/space/width"),
        ({"width": {"8": 8}}, "/space/width"),
        ({"width": [8, 16, 8]}, "/space/width/2"),
        ({"width": [8, 12]}, "/space/width/1"),
        ({"width": [2048]}, "/space/width/0"),
        ({"width": [0]}, "/space/width/0"),
        ({"width": [-8]}, "/space/width/0"),
        ({"width": [True]}, "/space/width/0"),
        ({"width": [8.0]}, "/space/width/0"),
        ({"width": [10**400]}, "/space/width/0"),
        ({"width": [float("nan")]}, "/space/width/0"),
        ({"width": [[8]]}, "/space/width/0"),
        ({"input": ["reload", "both"]}, "/space/input/1"),
        ({"input": [{"x": "keep"}]}, "/space/input/0/x"),
        ({"input": [{"x": ["cache"]}]}, "/space/input/0/x"),
        ({"input": [{"q": "cache"}]}, "/space/input/0/q"),
        ({"input": [{"y": "cache"}]}, "/space/input/0/y"),
        ({"input": [{"x": "cache"}, {"x": "cache"}]}, "/space/input/1"),
        ({"fusion": [True]}, "/space/fusion/0"),
        ({"unroll": [17]}, "/space/unroll/0"),
        ({"vector": [3]}, "/space/vector/0"),
        ({"local_lanes": ["all"]}, "/space/local_lanes/0"),
        ({"local_lanes": [3]}, "/space/local_lanes/0"),
        ({"nontemporal": [0]}, "/space/nontemporal/0"),
        ({"rows_per_block": [1]}, "/space/rows_per_block"),
    ],
)
def test_bad_spaces_name_field_value_and_what_is_allowed(document, field, softmax):
    (problem,) = refused(document, softmax)
    assert problem.field == field
    assert problem.message
    assert problem.allowed


def test_a_knob_of_another_target_lists_this_targets(softmax):
    (problem,) = refused({"rows_per_block": [1]}, softmax)
    assert "cuda" in problem.message
    assert "local_lanes" in problem.allowed
    assert "rows_per_block" not in problem.allowed
    (problem,) = refused({"local_lanes": [1]}, softmax, "cuda")
    assert "rows_per_block" in problem.allowed


def test_everything_wrong_is_reported_at_once(softmax):
    problems = refused({"width": [7, "x"], "colour": [1], "vector": []}, softmax, pointer="/cases/0/space")
    assert sorted(p.field for p in problems) == [
        "/cases/0/space/colour",
        "/cases/0/space/vector",
        "/cases/0/space/width/0",
        "/cases/0/space/width/1",
    ]


def test_endless_lists_do_not_give_endless_errors(softmax):
    assert len(refused({"width": list(range(3, 100_000, 2))}, softmax)) == 20


@pytest.mark.parametrize("document", [None, [], "width", 3])
def test_a_space_is_an_object(document, softmax):
    (problem,) = refused(document, softmax)
    assert problem.field == "/space"


def test_too_many_candidates_are_counted_before_any_is_made(softmax):
    document = {
        "width": [2**n for n in range(11)],
        "unroll": list(range(1, 17)),
        "vector": [1, 2, 4, 8, 16],
        "partials": [1, 2, 4, 8],
        "row_block": [1, 2, 4],
    }
    (problem,) = refused(document, softmax)
    size = 11 * 16 * 5 * 4 * 3 * 2 * 2 * 3 * 2
    assert (problem.field, problem.value) == ("/space", size)
    assert str(size) in problem.message
    assert "20000" in problem.allowed


class TestInert:
    def test_no_tile(self, kernel_case):
        space = resolve_space({"materialize": ["output", "recompute"]}, kernel_case("rms_norm"), "cpu")
        assert space.inert_knobs == ("algorithm", "materialize")
        assert space.lists["materialize"] == ("private",)

    def test_nothing_read_twice(self, program_case):
        case = program_case({"store": {"tensor": "y", "over": ["col"], "value": "x * x"}})
        space = resolve_space({"fusion": ["separate", "fused"]}, case, "cpu")
        assert space.inert_knobs == ("algorithm", "input", "fusion", "materialize", "partials")
        assert {c.input for c in space.candidates()} == {"reload"}
        assert {c.fusion for c in space.candidates()} == {"separate"}

    def test_a_map_may_cache_what_is_read_once(self, program_case):
        case = program_case({"store": {"tensor": "y", "over": ["col"], "value": "x * r"}})
        space = resolve_space({"input": ["cache", {"x": "cache"}]}, case, "cpu")
        assert {"input", "fusion"}.isdisjoint(space.inert_knobs)
        assert space.lists["input"] == ("reload", (("x", "cache"),))

    def test_no_distributed_statement_or_store(self, program_case):
        case = program_case({"store": {"tensor": "s", "over": [], "value": "bias * 2"}})
        space = resolve_space({"vector": [4], "nontemporal": [True]}, case, "cpu")
        assert space.inert_knobs == (
            "algorithm",
            "input",
            "fusion",
            "materialize",
            "vector",
            "unroll",
            "partials",
            "nontemporal",
        )
        assert {(c.vector, c.mapping.nontemporal) for c in space.candidates()} == {(1, False)}

    def test_all_of_them_matter_to_softmax(self, softmax):
        assert resolve_space({}, softmax, "cpu").inert_knobs == ()

    def test_fused_with_reload_only_is_not_inert(self, softmax):
        space = resolve_space({"input": ["reload"], "fusion": ["separate", "fused"]}, softmax, "cpu")
        assert {c.fusion for c in space.candidates()} == {"separate", "fused"}


class TestInputMaps:
    def test_a_map_that_says_what_a_word_says_is_that_word(self, softmax):
        space = resolve_space({"input": [{"x": "cache"}, "cache", {"x": "reload"}]}, softmax, "cpu")
        assert space.lists["input"] == ("reload", "cache")

    def test_part_of_the_inputs(self, program_case):
        case = program_case(
            {"reduce": {"into": "t", "op": "sum", "over": ["col"], "value": "x * r"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x * r / t"}},
        )
        space = resolve_space({"input": [{"r": "cache"}, "cache", "reload", {"x": "cache"}]}, case, "cpu")
        assert space.lists["input"] == (
            "reload",
            "cache",
            (("r", "cache"), ("x", "reload")),
            (("r", "reload"), ("x", "cache")),
        )
        assert space.document()["input"][2] == {"r": "cache", "x": "reload"}

    def test_an_input_with_a_fixed_column_cannot_be_cached(self, program_case):
        case = program_case(
            {"reduce": {"into": "t", "op": "sum", "over": ["col"], "value": "x - x[0]"}},
            {"store": {"tensor": "y", "over": ["col"], "value": "x / t"}},
        )
        assert "input" in resolve_space({}, case, "cpu").inert_knobs
        (problem,) = refused({"input": [{"x": "cache"}]}, case)
        assert (problem.field, problem.allowed) == ("/space/input/0/x", [])


def test_sixteen_bit_elements_have_wider_vectors(softmax):
    half = replace(softmax, dtypes={"x": "float16", "y": "float16"})
    assert resolve_space({}, softmax, "cuda").lists["vector"] == (1, 4)
    assert resolve_space({}, half, "cuda").lists["vector"] == (1, 8)
    assert resolve_space({}, half, "cpu").lists["vector"] == (1,)


@pytest.mark.parametrize(
    ("kernel", "inert", "candidates"),
    [
        ("swiglu", {"input", "fusion", "materialize", "partials"}, 24),
        ("dot", {"input", "fusion", "materialize", "nontemporal"}, 12),
        ("row_variance", {"materialize", "nontemporal"}, 24),
        ("log_softmax", {"materialize"}, 48),
        ("softmax", set(), 96),
    ],
)
def test_a_kernel_has_the_knobs_that_matter_to_it(kernel, inert, candidates, kernel_case):
    space = resolve_space({}, kernel_case(kernel, 17, 65), "cpu")
    assert set(space.inert_knobs) - {"algorithm"} == inert
    assert space.size == candidates


CROSSING = {
    "name": "weighted_sum",
    "dims": ["rows", "m", "n"],
    "axes": {
        "row": {"dim": "rows", "kind": "row"},
        "i": {"dim": "m", "kind": "column"},
        "j": {"dim": "n", "kind": "column"},
    },
    "tensors": {
        "x": {"axes": ["row", "i"], "role": "input"},
        "v": {"axes": ["row", "i", "j"], "role": "input"},
        "y": {"axes": ["row", "i"], "role": "output"},
        "total": {"axes": ["row"], "role": "output"},
    },
    "body": [
        {"tile": {"name": "weight", "over": ["i"], "value": "exp(x)"}},
        {"reduce": {"into": "summed", "op": "sum", "over": ["i", "j"], "value": "weight * v"}},
        {"store": {"tensor": "y", "over": ["i"], "value": "weight"}},
        {"store": {"tensor": "total", "over": [], "value": "summed"}},
    ],
}
ROW_ONLY = {
    "name": "spread",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row"], "role": "output"}},
    "body": [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"tile": {"name": "off", "over": ["col"], "value": "x - total / cols"}},
        {"reduce": {"into": "low", "op": "min", "over": ["col"], "value": "off"}},
        {"reduce": {"into": "high", "op": "max", "over": ["col"], "value": "off * off"}},
        {"store": {"tensor": "y", "over": [], "value": "high - low"}},
    ],
}


@pytest.mark.parametrize(
    ("program", "dims"),
    [(CROSSING, {"rows": 4, "m": 9, "n": 5}), (ROW_ONLY, {"rows": 4, "cols": 16384})],
    ids=["read over other axes", "no output has its axes"],
)
def test_by_default_a_tile_that_fits_no_output_is_recomputed_too(program, dims):
    case = resolve_case({"program": program, "dims": dims})
    space = resolve_space({"simd_scope": ["none"], "nontemporal": [False]}, case, "cpu")
    assert space.document()["materialize"] == ["private", "output", "recompute"]
    legal = [planned.candidate for planned in plan_case(case, space) if planned.in_space and planned.rejection is None]
    assert legal
    assert all(candidate.materialize == "recompute" for candidate in legal)


def test_a_tile_that_fits_an_output_keeps_the_short_list(softmax):
    assert resolve_space({}, softmax, "cpu").document()["materialize"] == ["private", "output"]

"""Every legality rule of fusion, at the one admission function, and what the builder makes of a refusal."""

from dataclasses import replace

import pytest

from search.planning.build import build_schedule
from search.planning.fusion import RULES, Admitted, Refused, admit
from search.program.desugar import desugar
from search.program.ir import Loop, Reducer, Tensor, Update
from search.space.uses import statement_uses

SUM_X = {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}}
STORE_X = {"store": {"tensor": "y", "over": ["col"], "value": "x / total"}}


def ask(case, tensor="x", *, inline_tiles=False):
    return admit(case, statement_uses(desugar(case.program), inline_tiles=inline_tiles), tensor)


def with_body(case, change):
    """The case with every statement of its desugared body passed through ``change``."""
    body = tuple(change(statement) for statement in desugar(case.program).body)
    return replace(case, program=replace(case.program, body=body))


def rule(answer):
    assert isinstance(answer, Refused), answer
    assert answer.rule in RULES
    return answer.rule


def test_a_first_reduction_is_admitted_with_its_later_consumers(program_case):
    answer = ask(program_case(SUM_X, STORE_X))
    assert answer == Admitted(tensor="x", site=1, later_consumers=(3,))


def test_a_single_use_has_no_later_consumer(program_case):
    answer = ask(program_case(SUM_X, {"store": {"tensor": "s", "over": [], "value": "total"}}))
    assert answer == Admitted(tensor="x", site=1, later_consumers=())


def test_squares_read_each_element_once(program_case):
    case = program_case({"reduce": {**SUM_X["reduce"], "value": "x * x"}}, STORE_X)
    assert isinstance(ask(case), Admitted)


def test_a_predicated_update_is_admitted(program_case):
    case = program_case(
        {"reducer": {"name": "r0", "op": "sum"}},
        {"update": {"reducer": "r0", "over": ["col"], "value": "x", "where": "x > 0"}},
        {"finalize": {"reducer": "r0", "into": "total"}},
        STORE_X,
    )
    assert isinstance(ask(case), Admitted)


def test_a_complete_reduction_may_permute_its_axes(program_case):
    case = program_case(
        {"reduce": {"into": "total", "op": "sum", "over": ["k", "col"], "value": "t3"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    )
    assert isinstance(ask(case, "t3"), Admitted)


def test_a_unit_axis_may_be_inserted(program_case):
    body = (
        {"reduce": {"into": "total", "op": "sum", "over": ["col", "k"], "value": "x"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    )
    assert isinstance(ask(program_case(*body, ks=1)), Admitted)
    assert rule(ask(program_case(*body, ks=2))) == "mismatched_index"


def test_a_fixed_column_is_a_mismatched_index(program_case):
    case = program_case({"reduce": {**SUM_X["reduce"], "value": "x[0] * r"}}, {**STORE_X})
    assert rule(ask(case)) == "mismatched_index"


def test_two_different_reads_are_a_repeated_read(program_case):
    case = program_case({"reduce": {**SUM_X["reduce"], "value": "x * x[0]"}}, STORE_X)
    assert rule(ask(case)) == "repeated_read"


def test_a_store_first_is_not_a_reduction(program_case):
    case = program_case(
        {"store": {"tensor": "z", "over": ["col"], "value": "x * 2"}},
        SUM_X,
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    )
    assert rule(ask(case)) == "not_a_reduction"


def test_a_tile_of_many_elements_is_a_wrapper(program_case):
    case = program_case(
        {"tile": {"name": "sq", "over": ["col"], "value": "x * x"}},
        {"reduce": {**SUM_X["reduce"], "value": "sq"}},
        STORE_X,
    )
    assert rule(ask(case)) == "non_unit_wrapper"
    assert isinstance(ask(case, inline_tiles=True), Admitted)


def test_a_tile_of_one_element_may_stand_between(program_case):
    case = program_case(
        {"tile": {"name": "sq", "over": ["col"], "value": "x * x"}},
        {"reduce": {**SUM_X["reduce"], "value": "sq"}},
        STORE_X,
        cols=1,
    )
    assert ask(case) == Admitted(tensor="x", site=0, later_consumers=(4,))


def test_a_tile_used_twice_is_a_multi_use_intermediate(program_case):
    case = program_case(
        {"tile": {"name": "sq", "over": ["col"], "value": "x * x"}},
        {"reduce": {**SUM_X["reduce"], "value": "sq"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "sq / total + x"}},
    )
    assert rule(ask(case)) == "multi_use_intermediate"


def test_a_strict_fold_is_refused(program_case):
    case = with_body(
        program_case(SUM_X, STORE_X), lambda s: replace(s, order="strict") if isinstance(s, Reducer) else s
    )
    assert rule(ask(case)) == "strict_fold"


def test_a_reducer_array_is_refused(program_case):
    case = with_body(
        program_case(SUM_X, STORE_X), lambda s: replace(s, shape=("col",)) if isinstance(s, Reducer) else s
    )
    assert rule(ask(case)) == "reducer_array"


def test_a_first_use_inside_a_loop_is_another_scope(program_case):
    case = with_body(
        program_case(SUM_X, STORE_X), lambda s: Loop(count="cols", body=(s,)) if isinstance(s, Update) else s
    )
    assert rule(ask(case)) == "cross_scope"


def test_a_write_that_may_alias_stands_between(program_case):
    case = program_case({"store": {"tensor": "z", "over": ["col"], "value": "r * 2"}}, SUM_X, STORE_X)
    assert isinstance(ask(case), Admitted)
    tensors = tuple(replace(t, aliases="x") if t.name == "z" else t for t in case.program.tensors)
    aliased = replace(case, program=replace(case.program, tensors=tensors))
    assert rule(ask(aliased)) == "effect_between"


def test_an_input_that_nothing_reads(program_case):
    case = program_case(SUM_X, STORE_X)
    extra = (*case.program.tensors, Tensor(name="unread", axes=("row", "col"), role="input"))
    assert rule(ask(replace(case, program=replace(case.program, tensors=extra)), "unread")) == "not_read"


def test_the_candidate_is_rejected_with_the_rule(program_case, cpu):
    case = program_case(
        {"store": {"tensor": "z", "over": ["col"], "value": "x * 2"}},
        SUM_X,
        {"store": {"tensor": "s", "over": [], "value": "total"}},
    )
    rejected = build_schedule(case, cpu(input="cache", fusion="fused"))
    assert (rejected.stage, rejected.reason) == ("constraints", "fusion_illegal")
    assert (rejected.detail["tensor"], rejected.detail["rule"]) == ("x", "not_a_reduction")
    assert rejected.detail["message"]


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
def test_the_kernels_fuse(kernel_case, kernel):
    assert isinstance(ask(kernel_case(kernel)), Admitted)

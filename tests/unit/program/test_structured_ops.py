"""Structured ops in documents: several results, what the verifier refuses, digests that do not move."""

from __future__ import annotations

from typing import Any

import pytest

from search.errors import InvalidInput
from search.program.digest import program_digest
from search.program.document import dump_program, parse_program
from search.program.dtypes import program_dtypes
from search.program.library import kernels
from search.program.verify import verify

STORE = {"store": {"tensor": "y", "over": [], "value": "a + b"}}


def document(*body: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "probe",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row"], "role": "output"}},
        "body": list(body),
    }


def reduce(op: str, into: Any, value: str = "x") -> dict[str, Any]:
    return {"reduce": {"into": into, "op": op, "over": ["col"], "value": value}}


def reducer(**fields: Any) -> list[dict[str, Any]]:
    return [
        {"reducer": {"name": "r", "op": "online_softmax", **fields}},
        {"update": {"reducer": "r", "over": ["col"], "value": "x"}},
        {"finalize": {"reducer": "r", "into": ["a", "b"]}},
        STORE,
    ]


def test_documents_keep_the_list_and_a_scalar_op_its_text() -> None:
    made = document(reduce("online_softmax", ["a", "b"]), STORE)
    assert dump_program(parse_program(made))["body"] == made["body"]
    plain = document(reduce("sum", "a"), {"store": {"tensor": "y", "over": [], "value": "a"}})
    assert dump_program(parse_program(plain))["body"] == plain["body"]
    assert parse_program(document(reduce("sum", ["a"]))) == parse_program(document(reduce("sum", "a")))


def test_one_read_component_is_enough_and_dtypes_are_the_components() -> None:
    made = parse_program(
        document(
            reduce("argmax", ["best", "at"]),
            reduce("welford", ["n", "mean", "m2"]),
            {"store": {"tensor": "y", "over": [], "value": "cast(at, float32) + m2"}},
        )
    )
    assert verify(made) == ()
    types = program_dtypes(made)
    assert [types[name] for name in ("best", "at", "n", "mean", "m2")] == ["float32", "int32", *["float32"] * 3]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (
            [reduce("online_softmax", "a")],
            "/body/0/reduce/into",
            "2 values, not 1: 'into' lists names for its peak, total",
        ),
        ([reduce("welford", ["a", "b"])], "/body/0/reduce/into", "delivers 3 values, not 2"),
        ([reduce("sum", ["a", "b"])], "/body/0/reduce/into", "'sum' delivers 1 value, not 2"),
        ([reduce("argmax", ["a", "a"])], "/body/0/reduce/into/1", "already defined"),
        ([reduce("argmax", ["a", "x"])], "/body/0/reduce/into/1", "already the name of a tensor"),
        ([reduce("argmax", ["a", "b"], "index(col)")], "/body/0/reduce/value", "holds float32, the value is int32"),
        ([reduce("online_softmax", ["a", "b"])], "/body/0/reduce/into/0", "never used"),
        (reducer(seed="1.0"), "/body/0/reducer/seed", "takes no 'seed'"),
        (reducer(order="strict"), "/body/0/reducer/order", "takes no 'order'"),
        (reducer(shape=["col"]), "/body/0/reducer/shape", "takes no 'shape'"),
        (reducer(dtype="int32"), "/body/0/reducer/dtype", "works on float32"),
    ],
)
def test_refused(body: list[dict[str, Any]], field: str, words: str) -> None:
    problems = verify(parse_program(document(*body)))
    assert any(problem.field == field and words in problem.message for problem in problems), problems


@pytest.mark.parametrize("into", [[], ["a", "b", "c", "d"], [1], 7, {"a": 1}, [["a"]]])
def test_ill_formed_results(into: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_program(document(reduce("argmax", into)))
    assert all(problem.field.startswith("/body/0/reduce/into") for problem in refused.value.problems)


def test_digests_know_the_results_and_those_of_scalar_ops_stay() -> None:
    first = document(reduce("online_softmax", ["a", "b"]), STORE)
    other = document(reduce("online_softmax", ["p", "q"]), {"store": {"tensor": "y", "over": [], "value": "p + q"}})
    swapped = document(reduce("online_softmax", ["b", "a"]), {"store": {"tensor": "y", "over": [], "value": "a - b"}})
    digests = [program_digest(parse_program(made), {}) for made in (first, other, swapped)]
    assert digests[0] == digests[1] != digests[2]
    softmax = kernels()["softmax"]
    assert program_digest(softmax.program, softmax.params).startswith("30bb770ca209977d")

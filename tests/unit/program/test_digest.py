"""The digest: the same for the same computation, different for any other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from search.program.desugar import desugar
from search.program.digest import program_digest
from search.program.document import dump_program, parse_program
from search.program.dtypes import expression_dtype, program_dtypes
from search.program.ir import Finalize, Program, Reduce, Reducer, Update
from search.program.library import kernels
from search.program.verify import verify

DOCUMENT = dump_program(kernels()["layer_norm"].program)


def digest(document: dict[str, Any], **params: float) -> str:
    program = parse_program(document)
    assert verify(program) == ()
    return program_digest(program, {param.name: param.default for param in program.params} | params)


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = to
    return document


def test_white_space_order_of_keys_and_names_of_locals_do_not_count() -> None:
    same = copy.deepcopy(DOCUMENT)
    same["name"] = "other"
    same["tensors"] = dict(reversed(same["tensors"].items()))
    same["axes"] = dict(reversed(same["axes"].items()))
    same["dims"] = same["dims"][::-1]
    same["body"] = [
        {"reduce": {"value": " x[ row,col ] ", "over": ["col"], "op": "sum", "into": "a"}},
        {"let": {"value": "(a)/cols", "name": "b"}},
        {"tile": {"name": "c", "over": ["col"], "value": "x-b"}},
        {"reduce": {"into": "d", "op": "sum", "over": ["col"], "value": "c*c"}},
        {"let": {"name": "e", "value": "1/sqrt((d/cols)+eps)"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "((c * e) * weight) + bias"}},
    ]
    assert digest(same) == digest(DOCUMENT)


def test_reduce_is_only_sugar() -> None:
    written = copy.deepcopy(DOCUMENT)
    written["body"][0:1] = [
        {"reducer": {"name": "acc", "op": "sum"}},
        {"update": {"reducer": "acc", "over": ["col"], "value": "x"}},
        {"finalize": {"reducer": "acc", "into": "total"}},
    ]
    assert digest(written) == digest(DOCUMENT)
    # the other way of writing it: the reducer is the second local, not the first
    both = parse_program(written)
    assert digest(dump_program(desugar(both))) == digest(DOCUMENT)


@pytest.mark.parametrize(
    "document",
    [
        changed("body", 1, "let", "value", to="total / cols + 0"),
        changed("body", 3, "reduce", "op", to="max"),
        changed("body", 5, "store", "value", to="centered * weight * rstd + bias"),
        changed("body", 5, "store", "value", to="centered * (rstd * weight) + bias"),
        changed("body", 4, "let", "value", to="1.0 / sqrt(squares / cols + eps)"),
        changed("tensors", "weight", to={"axes": ["row", "col"], "role": "input", "like": "x"}),
    ],
)
def test_everything_else_counts(document: dict[str, Any]) -> None:
    assert digest(document) != digest(DOCUMENT)


def test_params_count_by_value() -> None:
    assert digest(DOCUMENT, eps=1e-6) != digest(DOCUMENT)
    assert digest(DOCUMENT, eps=1) == digest(DOCUMENT, eps=1.0)


def test_swapped_statements_count() -> None:
    first = {"tile": {"name": "a", "over": ["col"], "value": "x + 1"}}
    second = {"tile": {"name": "b", "over": ["col"], "value": "x + 2"}}
    softmax = dump_program(kernels()["softmax"].program)
    store = {"store": {"tensor": "y", "over": ["col"], "value": "a - b"}}
    one, other = (digest(softmax | {"body": [*body, store]}) for body in ([first, second], [second, first]))
    assert one != other


def integer_program() -> Program:
    return parse_program(
        {
            "name": "counts",
            "dims": ["rows", "cols"],
            "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
            "tensors": {
                "x": {"axes": ["row", "col"], "role": "input"},
                "n": {"axes": ["row"], "role": "output", "dtype": "int32"},
                "y": {"axes": ["row"], "role": "output"},
            },
            "body": [
                {"let": {"name": "total_reducer", "value": "2.0"}},
                {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x * total_reducer"}},
                {"reduce": {"into": "bits", "op": "xor", "over": ["col"], "value": "cast(x, int32)"}},
                {"reduce": {"into": "count", "op": "sum", "over": ["col"], "value": "1"}},
                {"let": {"name": "wide", "value": "cols * 2"}},
                {"store": {"tensor": "n", "over": [], "value": "bits + wide"}},
                {"store": {"tensor": "y", "over": [], "value": "total / wide * count"}},
            ],
        }
    )


def test_desugared_reducers_get_fresh_names_and_the_right_dtype() -> None:
    program = integer_program()
    assert verify(program) == ()
    plain = desugar(program)
    assert verify(plain) == ()
    assert not any(isinstance(statement, Reduce) for statement in plain.body)
    reducers = [(s.name, s.op, s.dtype) for s in plain.body if isinstance(s, Reducer)]
    assert reducers == [
        ("total_reducer2", "sum", "float32"),
        ("bits_reducer", "xor", "int32"),
        ("count_reducer", "sum", "float32"),
    ]
    assert [type(s) for s in plain.body[1:4]] == [Reducer, Update, Finalize]
    assert desugar(plain) == plain


def test_dtypes_of_every_name() -> None:
    types = program_dtypes(integer_program())
    assert types == {
        "rows": "int",
        "cols": "int",
        "x": "float32",
        "n": "int32",
        "y": "float32",
        "total_reducer": "float32",
        "total": "float32",
        "bits": "int32",
        "count": "float32",
        "wide": "int",
    }
    body = integer_program().body
    assert [expression_dtype(body[position].value, types) for position in (1, 2, 3, 4, 5)] == [  # type: ignore[union-attr]
        "float32",
        "int32",
        "int32",
        "int32",
        "int32",
    ]

"""Cases from what a caller names, and every reason why not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from search.errors import InvalidInput
from search.program.document import dump_program
from search.program.library import kernels
from search.program.limits import Limits
from search.program.resolve import resolve_case

DIMS = {"rows": 64, "cols": 256}
FLOATS = ["float32", "float16", "bfloat16"]


def refusals(document: Any, **options: Any) -> dict[str, tuple[Any, str, Any]]:
    with pytest.raises(InvalidInput) as caught:
        resolve_case(document, **options)
    documents = [problem.document() for problem in caught.value.problems]
    json.dumps(documents, allow_nan=False).encode("utf-8")
    return {d["field"]: (d["value"], d["message"], d["allowed"]) for d in documents}


def test_defaults_are_filled_in_and_echoed() -> None:
    case = resolve_case({"kernel": "rms_norm", "dims": DIMS})
    assert case.document() == {
        "kernel": "rms_norm",
        "params": {"eps": 1e-6},
        "dims": DIMS,
        "dtypes": {"x": "float32", "weight": "float32", "y": "float32"},
    }
    assert resolve_case(case.document()) == case


def test_an_integer_given_for_a_float_param_is_that_float() -> None:
    case = resolve_case({"kernel": "rms_norm", "dims": DIMS, "params": {"eps": 1}})
    assert repr(case.params) == "{'eps': 1.0}"


def test_a_program_instead_of_a_kernel() -> None:
    program = dump_program(kernels()["softmax"].program) | {"name": "mine"}
    case = resolve_case({"program": program, "dims": DIMS})
    assert case.kernel == "mine"
    assert case.document()["program"] == program
    assert resolve_case(case.document()) == case
    assert "/kernel" in refusals({"kernel": "softmax", "program": program, "dims": DIMS})


def test_a_built_in_name_stays_what_it_is() -> None:
    softmax = dump_program(kernels()["softmax"].program)
    assert resolve_case({"program": softmax, "dims": DIMS}).from_document
    softmax["body"][1]["tile"]["value"] = "exp(x - peak) * 2"
    assert "/program/name" in refusals({"program": softmax, "dims": DIMS})
    sent_before_there_was_one = resolve_case({"program": softmax, "dims": DIMS}, admitted=True)
    assert resolve_case(sent_before_there_was_one.document(), admitted=True) == sent_before_there_was_one


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"kernel": "softmx"}, "/kernel", list(kernels())),
        ({"kernel": None}, "/kernel", list(kernels())),
        ({"kernel": ["rms_norm"]}, "/kernel", list(kernels())),
        ({"colour": 1}, "/colour", ["kernel", "program", "params", "dims", "dtypes"]),
        ({"dims": {"rows": 64}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": None}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": 0}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": -3}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": True}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": 64.0}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": "64"}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": None}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": 2**24 + 1}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"cols": 10**5000}}, "/dims/cols", "an integer from 1 to 16777216"),
        ({"dims": DIMS | {"depth": 4}}, "/dims/depth", ["rows", "cols"]),
        ({"dims": [64, 256]}, "/dims", ["rows", "cols"]),
        ({"dims": {"rows": 2**24, "cols": 2**24}}, "/dims", "<= 2147483648 bytes"),
        ({"params": {"epsilon": 1}}, "/params/epsilon", ["eps"]),
        ({"params": {"eps": math.nan}}, "/params/eps", "a finite number"),
        ({"params": {"eps": -math.inf}}, "/params/eps", "a finite number"),
        ({"params": {"eps": 10**400}}, "/params/eps", "a number of magnitude <= 3.4028234663852886e+38"),
        ({"params": {"eps": True}}, "/params/eps", "a finite number"),
        ({"params": {"eps": "1e-6"}}, "/params/eps", "a finite number"),
        ({"params": 3}, "/params", ["eps"]),
        ({"dtypes": {"x": "float64"}}, "/dtypes/x", FLOATS),
        ({"dtypes": {"x": "int32"}}, "/dtypes/x", FLOATS),
        ({"dtypes": {"x": []}}, "/dtypes/x", FLOATS),
        ({"dtypes": {"y": "float16"}}, "/dtypes/y", ["float32"]),
        ({"dtypes": {"\ud800": "float32"}}, "/dtypes/\\ud800", ["x", "weight", "y"]),
        ({"dtypes": {"a/b": "float32"}}, "/dtypes/a~1b", ["x", "weight", "y"]),
    ],
)
def test_refusals(changes: dict[str, Any], field: str, allowed: Any) -> None:
    found = refusals({"kernel": "rms_norm", "dims": DIMS} | changes)
    assert found[field][2] == allowed, found


@pytest.mark.parametrize("document", [None, 3, "softmax", [], [1], math.nan])
def test_what_is_not_an_object(document: Any) -> None:
    assert list(refusals(document)) == [""]


def test_all_problems_at_once_under_the_given_pointer() -> None:
    bad = {"kernel": "rms_norm", "dims": {"rows": 0}, "params": {"eps": "x"}, "dtypes": {"y": "int8"}, "extra": 1}
    assert list(refusals(bad, pointer="/cases/3")) == [
        "/cases/3/extra",
        "/cases/3/params/eps",
        "/cases/3/dims/rows",
        "/cases/3/dims/cols",
        "/cases/3/dtypes/y",
    ]


def test_problems_of_a_program_point_into_it() -> None:
    program = dump_program(kernels()["rms_norm"].program) | {"name": "mine"}
    program["body"][1]["let"]["value"] = "1 / sqrt(squares / cols + epsilon)"
    assert "/program/body/1/let/value" in refusals({"program": program, "dims": DIMS})
    program["body"][1]["let"]["value"] = "1 / sqrt("
    assert list(refusals({"program": program, "dims": DIMS})) == ["/program/body/1/let/value"]
    assert list(refusals({"program": 7, "dims": DIMS})) == ["/program"]


def test_dtypes_of_the_same_values_may_be_chosen_and_likeness_follows() -> None:
    half = resolve_case({"kernel": "rms_norm", "dims": DIMS, "dtypes": {"x": "bfloat16"}})
    assert half.dtypes == {"x": "bfloat16", "weight": "bfloat16", "y": "bfloat16"}
    assert resolve_case(half.document()) == half
    program = dump_program(kernels()["softmax"].program) | {"name": "mine"}
    program["tensors"]["y"] = {"axes": ["row", "col"], "role": "output", "dtype": "float16"}
    program["tensors"]["label"] = {"axes": ["row"], "role": "input", "dtype": "int32"}
    program["body"][-1]["store"]["value"] = "select(index(col) == label, e, e * inv)"
    asked = {"program": program, "dims": DIMS}
    assert resolve_case(asked).dtypes == {"x": "float32", "y": "float16", "label": "int32"}
    assert resolve_case(asked | {"dtypes": {"x": "bfloat16", "y": "float32"}}).dtypes["y"] == "float32"
    value, message, allowed = refusals(asked | {"dtypes": {"label": "float16"}})["/dtypes/label"]
    assert (value, allowed) == ("float16", ["int32"])
    assert "int32" in message


def test_out_of_bounds_is_refused_at_the_statement() -> None:
    program = dump_program(kernels()["softmax"].program) | {"name": "mine"}
    program["body"][0]["reduce"]["value"] = "x[col + 1]"
    found = refusals({"program": program, "dims": DIMS})
    assert found["/program/body/0/reduce/value"][0] == "col + 1"


def test_the_memory_limit_is_a_setting_and_exact() -> None:
    needed = 2 * 64 * 256 * 4
    document = {"kernel": "softmax", "dims": DIMS}
    assert resolve_case(document, limits=Limits(tensor_bytes=needed)).dims == DIMS
    assert list(refusals(document, limits=Limits(tensor_bytes=needed - 1))) == ["/dims"]

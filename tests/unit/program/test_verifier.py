"""The verifier: one wrong form a test, each with its pointer and its reason, and the right forms beside them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from search.program.case import Case
from search.program.document import parse_program
from search.program.ir import Call, Const, Name, Program, Reduce, Store
from search.program.library import kernels
from search.program.verify import verify, verify_case

BASE: dict[str, Any] = {
    "name": "probe",
    "params": {"eps": 1e-6, "shift": 1},
    "dims": ["rows", "cols", "heads"],
    "axes": {
        "row": {"dim": "rows", "kind": "row"},
        "col": {"dim": "cols", "kind": "column"},
        "head": {"dim": "heads", "kind": "column"},
    },
    "tensors": {
        "x": {"axes": ["row", "head", "col"], "role": "input"},
        "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
    },
}
REDUCE = {"reduce": {"into": "total", "op": "sum", "over": ["head", "col"], "value": "x"}}
STORE = {"store": {"tensor": "y", "over": ["col"], "value": "x[0, col] + total + eps + shift"}}
OPEN = {"reducer": {"name": "acc", "op": "sum"}}
UPDATE = {"update": {"reducer": "acc", "over": ["head", "col"], "value": "x"}}
CLOSE = {"finalize": {"reducer": "acc", "into": "total"}}


def program(*body: dict[str, Any]) -> Program:
    return parse_program(BASE | {"body": list(body)})


def told(found: Program) -> list[tuple[str, str]]:
    return [(problem.field, problem.message) for problem in verify(found)]


def test_right_forms() -> None:
    assert told(program(REDUCE, STORE)) == []
    assert told(program(OPEN, UPDATE, CLOSE, STORE)) == []
    assert told(program(OPEN, UPDATE, {"update": {"reducer": "acc", "over": [], "value": "1"}}, CLOSE, STORE)) == []
    predicated = {"update": {"reducer": "acc", "over": ["col"], "value": "x[1, col]", "where": "index(col) < 3"}}
    seeded = {"reducer": {"name": "acc", "op": "max", "seed": "eps * 2"}}
    assert told(program(seeded, UPDATE, predicated, CLOSE, {"stage": {}}, STORE)) == []
    for kernel in kernels().values():
        assert told(kernel.program) == []


def test_a_loop_that_updates_is_legal() -> None:
    looped = program(OPEN, {"loop": {"count": "heads", "body": [UPDATE]}}, CLOSE, STORE)
    assert told(looped) == []


READ = {"let": {"name": "early", "value": "acc + 1"}}
LET = {"let": {"name": "total", "value": "1.0"}}


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        # the reducer's states
        ([OPEN, READ, UPDATE, CLOSE, STORE], "/body/1/let/value", "'acc' is read before its finalize"),
        ([OPEN, UPDATE, CLOSE, READ, STORE], "/body/3/let/value", "read its result 'total'"),
        ([OPEN, UPDATE, CLOSE, UPDATE, STORE], "/body/3/update/reducer", "after its finalize"),
        (
            [OPEN, UPDATE, CLOSE, {"finalize": {"reducer": "acc", "into": "again"}}, STORE],
            "/body/3/finalize/reducer",
            "finalized already, into 'total'",
        ),
        ([LET, OPEN, UPDATE, STORE], "/body/1/reducer", "'acc' is never finalized"),
        ([OPEN, CLOSE, {"let": {"name": "z", "value": "0"}}, STORE], "/body/0/reducer", "never updated"),
        ([UPDATE, OPEN, CLOSE, STORE], "/body/0/update/reducer", "not a reducer opened before"),
        ([CLOSE, OPEN, UPDATE, STORE], "/body/0/finalize/reducer", "not a reducer opened before"),
        ([LET, {"update": {"reducer": "total", "over": [], "value": "1"}}, STORE], "/body/1/update/reducer", "not a"),
        (
            [OPEN, UPDATE, {"store": {"tensor": "acc", "over": [], "value": "1"}}, CLOSE, STORE],
            "/body/2/store/tensor",
            "a reducer; use update",
        ),
        (
            [OPEN, UPDATE, {"let": {"name": "acc", "value": "1"}}, CLOSE, STORE],
            "/body/2/let/name",
            "assignment to the reducer 'acc'",
        ),
        ([OPEN, OPEN, UPDATE, CLOSE, STORE], "/body/1/reducer/name", "assignment to the reducer"),
        (
            [OPEN, UPDATE, {"let": {"name": "alias", "value": "acc"}}, CLOSE, STORE],
            "/body/2/let/value",
            "read before its finalize",
        ),
        (
            [OPEN, {"update": {"reducer": "acc", "over": [], "value": "acc + 1"}}, CLOSE, STORE],
            "/body/1/update/value",
            "read before its finalize",
        ),
        ([OPEN, {"loop": {"count": "heads", "body": [UPDATE, CLOSE]}}, STORE], "/body/1/loop/body/1/finalize", "loop"),
        (
            [{"loop": {"count": "heads", "body": [LET]}}, STORE],
            "/body/1/store/value",
            "outside its loop",
        ),
        ([LET, {"loop": {"count": "eps", "body": []}}, STORE], "/body/1/loop/count", "not a dim or an integer"),
        # ops and dtypes
        ([{"reduce": REDUCE["reduce"] | {"op": "-"}}, STORE], "/body/0/reduce/op", "not associative"),
        ([{"reducer": {"name": "acc", "op": "mean"}}, UPDATE, CLOSE, STORE], "/body/0/reducer/op", "not associative"),
        ([{"reduce": REDUCE["reduce"] | {"op": "xor"}}, STORE], "/body/0/reduce/value", "works on int32"),
        ([{"reducer": {"name": "acc", "op": "or"}}, UPDATE, CLOSE, STORE], "/body/0/reducer/dtype", "int32 reducer"),
        (
            [{"reducer": {"name": "acc", "op": "sum", "dtype": "float16"}}, UPDATE, CLOSE, STORE],
            "/body/0/reducer/dtype",
            "accumulate in float32 or int32",
        ),
        (
            [{"reducer": {"name": "acc", "op": "sum", "dtype": "int32"}}, UPDATE, CLOSE, STORE],
            "/body/1/update/value",
            "holds int32, the value is float32",
        ),
        (
            [OPEN, {"update": UPDATE["update"] | {"value": "index(col)"}}, CLOSE, STORE],
            "/body/1/update/value",
            "holds float32, the value is int32",
        ),
        (
            [OPEN, {"update": UPDATE["update"] | {"where": "x"}}, CLOSE, STORE],
            "/body/1/update/where",
            "'where' is a condition",
        ),
        (
            [{"reducer": {"name": "acc", "op": "sum", "seed": "1 < 2"}}, UPDATE, CLOSE, STORE],
            "/body/0/reducer/seed",
            "the seed is bool",
        ),
        (
            [{"reducer": {"name": "acc", "op": "sum", "order": "random"}}, UPDATE, CLOSE, STORE],
            "/body/0/reducer/order",
            "unknown order",
        ),
        (
            [{"let": {"name": "total", "value": "index(row) + eps"}}, STORE],
            "/body/0/let/value",
            "mixes int32 and float32",
        ),
        ([{"let": {"name": "total", "value": "not eps"}}, STORE], "/body/0/let/value", "needs a condition"),
        ([{"let": {"name": "total", "value": "-(1 < 2)"}}, STORE], "/body/0/let/value", "needs numbers"),
        ([{"let": {"name": "total", "value": "exp(index(row))"}}, STORE], "/body/0/let/value", "works on float32"),
        ([{"let": {"name": "total", "value": "select(eps, 1, 2)"}}, STORE], "/body/0/let/value", "needs a condition"),
        ([{"let": {"name": "total", "value": "select(eps < 1, 1 < 2, 2)"}}, STORE], "/body/0/let/value", "mixes"),
        (
            [REDUCE, {"store": STORE["store"] | {"value": "x[0, col] < total + eps + shift"}}],
            "/body/1/store/value",
            "bool",
        ),
        # indices, axes and shapes
        (
            [OPEN, {"update": UPDATE["update"] | {"index": ["0"]}}, CLOSE, STORE],
            "/body/1/update/index",
            "has 0 axes (one value per row), not 1",
        ),
        (
            [{"reducer": {"name": "acc", "op": "sum", "shape": ["row"]}}, UPDATE, CLOSE, STORE],
            "/body/0/reducer/shape/0",
            "not a column axis or a dim",
        ),
        ([{"reduce": REDUCE["reduce"] | {"over": ["row", "col"]}}, STORE], "/body/0/reduce/over/0", "is the row axis"),
        ([{"reduce": REDUCE["reduce"] | {"over": ["zz"]}}, STORE], "/body/0/reduce/over/0", "not an axis"),
        ([{"reduce": REDUCE["reduce"] | {"over": ["col", "col"]}}, STORE], "/body/0/reduce/over/1", "twice"),
        ([{"reduce": REDUCE["reduce"] | {"over": ["col"]}}, STORE], "/body/0/reduce/value", "does not run over it"),
        ([{"let": {"name": "total", "value": "x"}}, STORE], "/body/0/let/value", "does not run over it"),
        ([{"let": {"name": "total", "value": "cast(index(col), float32)"}}, STORE], "/body/0/let/value", "needs a"),
        ([{"let": {"name": "total", "value": "col + 1.0"}}, STORE], "/body/0/let/value", "is an axis"),
        (
            [{"reduce": REDUCE["reduce"] | {"value": "x[head + col, col]"}}, STORE],
            "/body/0/reduce/value",
            "one axis at most",
        ),
        (
            [{"reduce": REDUCE["reduce"] | {"value": "x[row + 1, head, col]"}}, STORE],
            "/body/0/reduce/value",
            "its own row",
        ),
        ([{"reduce": REDUCE["reduce"] | {"value": "x[row, col]"}}, STORE], "/body/0/reduce/value", "not a column axis"),
        ([{"reduce": REDUCE["reduce"] | {"value": "x[eps, col]"}}, STORE], "/body/0/reduce/value", "not a column axis"),
        (
            [
                {"tile": {"name": "t", "over": ["head", "col"], "value": "x"}},
                {"let": {"name": "total", "value": "t"}},
                STORE,
            ],
            "/body/1/let/value",
            "tile 't' runs over head, col",
        ),
        (
            [{"tile": {"name": "total", "over": ["head"], "value": "x"}}, STORE],
            "/body/0/tile/value",
            "read along 'col'",
        ),
        ([{"tile": {"name": "total", "over": [], "value": "1.0"}}, STORE], "/body/0/tile/over", "at least one column"),
        # names
        (
            [REDUCE, {"store": STORE["store"] | {"value": "x[0, col] + totla + eps + shift"}}],
            "/body/1/store/value",
            "totla",
        ),
        ([STORE, REDUCE], "/body/0/store/value", "read before /body/1/reduce defines it"),
        ([{"let": {"name": "total", "value": "total + 1"}}, STORE], "/body/0/let/value", "by its own definition"),
        ([REDUCE, LET, STORE], "/body/1/let/name", "already defined by /body/0/reduce/into"),
        ([REDUCE, {"let": {"name": "eps", "value": "1"}}, STORE], "/body/1/let/name", "already the name of a param"),
        ([REDUCE, {"let": {"name": "x", "value": "1"}}, STORE], "/body/1/let/name", "already the name of a tensor"),
        ([REDUCE, {"let": {"name": "exp", "value": "1"}}, STORE], "/body/1/let/name", "reserved word"),
        ([REDUCE, {"let": {"name": "9a", "value": "1"}}, STORE], "/body/1/let/name", "not a legal name"),
        ([REDUCE, {"let": {"name": "n" * 65, "value": "1"}}, STORE], "/body/1/let/name", "not a legal name"),
        ([REDUCE, {"let": {"name": "idle", "value": "1"}}, STORE], "/body/1/let/name", "never used"),
        (
            [REDUCE, {"tile": {"name": "idle", "over": ["col"], "value": "1.0"}}, STORE],
            "/body/1/tile/name",
            "never used",
        ),
        # outputs
        ([REDUCE, {"store": STORE["store"] | {"over": []}}], "/body/1/store/over", "only partly written"),
        ([REDUCE, {"store": STORE["store"] | {"over": ["head", "col"]}}], "/body/1/store/over", "written many times"),
        ([REDUCE, STORE, STORE], "/body/2/store/tensor", "written twice"),
        ([REDUCE, STORE, {"store": STORE["store"] | {"tensor": "x"}}], "/body/2/store/tensor", "an input"),
        ([REDUCE, STORE, {"store": STORE["store"] | {"tensor": "zz"}}], "/body/2/store/tensor", "no output"),
        ([REDUCE, STORE, {"let": {"name": "z", "value": "y[0]"}}], "/body/2/let/value", "cannot be read"),
        ([REDUCE, {"let": {"name": "unwritten", "value": "total + eps + shift"}}], "/tensors/y", "never written"),
        ([LET, {"store": STORE["store"] | {"value": "total + eps + shift"}}], "/tensors/x", "never read"),
        ([], "/body", "no statements"),
    ],
)
def test_wrong_forms(body: list[dict[str, Any]], field: str, message: str) -> None:
    found = told(program(*body))
    assert any(where == field and message in what for where, what in found), found


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"name": "no-dashes"}, "/name", "not a legal name"),
        ({"name": "pr\u043ebe"}, "/name", "not a legal name: U+043E is CYRILLIC SMALL LETTER O"),
        ({"name": ""}, "/name", "not a legal name"),
        ({"params__select": 1.0}, "/params/select", "reserved"),
        ({"params__rows": 1.0}, "/dims/0", "already the name of a param"),
        ({"params__inert": 1.0}, "/params/inert", "never used"),
        ({"params__eps": float("nan")}, "/params/eps", "must be finite"),
        ({"params__eps": 1e39}, "/params/eps", "does not fit in float32"),
        ({"params__shift": 2**31}, "/params/shift", "is an integer"),
        ({"params__shift": 10**5000}, "/params/shift", "is an integer"),
        ({"dims": ["rows", "cols", "heads", "extra"]}, "/dims/3", "never used"),
        ({"dims": ["rows", "cols", "heads", "rows"]}, "/dims/3", "already the name of a dim"),
        ({"axes__col__dim": "width"}, "/axes/col/dim", "not a dim"),
        ({"axes__other": {"dim": "cols", "kind": "column"}}, "/axes/other", "never used"),
        ({"axes__other": {"dim": "rows", "kind": "row"}}, "/axes", "exactly one row axis"),
        ({"axes__row__kind": "column"}, "/axes", "exactly one row axis"),
        ({"tensors__x__axes": ["row", "depth"]}, "/tensors/x/axes/1", "not an axis"),
        ({"tensors__x__axes": ["row", "col", "col"]}, "/tensors/x/axes/2", "twice"),
        ({"tensors__x__axes": []}, "/tensors/x/axes", "at least one axis"),
        ({"tensors__y__axes": ["col"]}, "/tensors/y/axes", "no row axis"),
        ({"tensors__x__dtype": "float64"}, "/tensors/x/dtype", "unknown dtype"),
        ({"tensors__y__dtype": "float32"}, "/tensors/y/dtype", "not both"),
        ({"tensors__y__like": "y"}, "/tensors/y/like", "like a tensor that has a dtype"),
        ({"tensors__y__like": "zz"}, "/tensors/y/like", "like a tensor that has a dtype"),
        ({"tensors__y__aliases": "x"}, "/tensors/y/aliases", "same axes and dtype"),
        ({"tensors__x__aliases": "x"}, "/tensors/x/aliases", "only an output"),
        ({"tensors__y__role": "input"}, "/tensors", "no output"),
        ({"tensors__z": {"axes": ["row"], "role": "input"}}, "/tensors/z", "never read"),
        ({"tensors__z": {"axes": ["row"], "role": "output"}}, "/tensors/z", "never written"),
    ],
)
def test_wrong_declarations(changes: dict[str, Any], field: str, message: str) -> None:
    document = copy.deepcopy(BASE) | {"body": [REDUCE, {"store": STORE["store"] | {"value": "total + eps + shift"}}]}
    if "tensors__x__axes" in changes:
        # x is not read, so that its axes are the only thing wrong
        document["body"][0] = LET
    for path, value in changes.items():
        target = document
        *parents, last = path.split("__")
        for key in parents:
            target = target[key]
        target[last] = value
    found = told(parse_program(document))
    assert any(where == field and message in what for where, what in found), found


def test_programs_built_in_python_are_judged_too() -> None:
    good = program(REDUCE, STORE)
    bad = replace(
        good,
        body=(
            Reduce(into="total", op="sum", over=("col",), value=Call(function="sinh", args=())),
            Store(tensor="y", over=("col",), value=Const(value=float("nan"))),
            Store(tensor="y", over=("col",), value=Name(name="x")),
        ),
    )
    fields = [problem.field for problem in verify(bad)]
    assert fields[:3] == ["/body/0/reduce/value", "/body/1/store/value", "/body/2/store/value"]


def test_every_problem_is_found_at_once() -> None:
    found = told(
        program(READ, {"let": {"name": "exp", "value": "zz"}}, {"store": {"tensor": "x", "over": [], "value": "1"}})
    )
    assert [field for field, _ in found][:4] == [
        "/body/0/let/value",
        "/body/1/let/value",
        "/body/1/let/name",
        "/body/2/store/tensor",
    ]


# --- at actual dims


ROTATED = {
    "name": "rotate",
    "params": {"shift": 0},
    "dims": ["rows", "cols", "half"],
    "axes": {
        "row": {"dim": "rows", "kind": "row"},
        "col": {"dim": "cols", "kind": "column"},
        "low": {"dim": "half", "kind": "column"},
    },
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input"},
        "y": {"axes": ["row", "low"], "role": "output"},
        "z": {"axes": ["row"], "role": "output"},
    },
    "body": [
        {"store": {"tensor": "y", "over": ["low"], "value": "x[low] - x[cols - 1 - low] * x[low + half + shift]"}},
        {"store": {"tensor": "z", "over": [], "value": "x[0] / (cols * rows)"}},
    ],
}


def rotated(rows: int, cols: int, half: int, shift: int = 0) -> list[tuple[str, Any]]:
    found = parse_program(ROTATED)
    assert verify(found) == ()
    case = Case(
        kernel="rotate",
        program=found,
        params={"shift": shift},
        dims={"rows": rows, "cols": cols, "half": half},
        dtypes={"x": "float32", "y": "float32", "z": "float32"},
    )
    return [(problem.field, problem.value) for problem in verify_case(case)]


def test_subscripts_are_proved_in_bounds() -> None:
    assert rotated(3, 8, 4) == []
    assert rotated(3, 9, 4, shift=1) == []
    assert rotated(3, 8, 4, shift=1) == [("/body/0/store/value", "half + low + shift")]
    assert rotated(3, 7, 4) == [("/body/0/store/value", "half + low + shift")]
    assert rotated(3, 8, 4, shift=-5) == [("/body/0/store/value", "half + low + shift")]
    assert rotated(3, 8, 9) == [
        ("/body/0/store/value", "low"),
        ("/body/0/store/value", "cols - low - 1"),
        ("/body/0/store/value", "half + low + shift"),
    ]


def test_compile_time_integers_fit_in_int32() -> None:
    assert rotated(2**16, 2**15 - 1, 4) == []
    assert rotated(2**16, 2**15, 4) == [("/body/1/store/value", 2**31)]


def test_arrays_aliases_16_bit_tensors_and_condition_tiles_are_legal() -> None:
    document = copy.deepcopy(BASE)
    document["tensors"]["x"]["dtype"] = "float16"
    document["tensors"]["y"] |= {"axes": ["row", "head", "col"], "aliases": "x"}
    document["body"] = [
        {"reducer": {"name": "bins", "op": "sum", "shape": ["head"]}},
        {"update": {"reducer": "bins", "over": ["head", "col"], "value": "x", "index": ["index(head)"]}},
        {"finalize": {"reducer": "bins", "into": "total"}},
        {"tile": {"name": "mask", "over": ["col"], "value": "index(col) < shift"}},
        {"store": {"tensor": "y", "over": ["head", "col"], "value": "select(mask, cast(x, bfloat16), total + eps)"}},
    ]
    found = parse_program(document)
    assert verify(found) == ()

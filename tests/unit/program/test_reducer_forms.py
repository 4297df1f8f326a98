"""Reducers in all their forms: what is refused, by pointer and in words, and what the legal ones mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from search.errors import InvalidInput
from search.program.digest import program_digest
from search.program.document import dump_program, parse_program
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.program.verify import verify

BASE: dict[str, Any] = {
    "name": "probe",
    "params": {"trips": 2, "last": 4},
    "dims": ["rows", "cols", "bins"],
    "axes": {
        "row": {"dim": "rows", "kind": "row"},
        "col": {"dim": "cols", "kind": "column"},
        "bin": {"dim": "bins", "kind": "column"},
    },
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input"},
        "y": {"axes": ["row", "bin"], "role": "output"},
    },
}
DIMS = {"rows": 2, "cols": 7, "bins": 5}
KEEP = {"let": {"name": "keep", "value": "cast(trips + last, float32)"}}


def opened(**more: Any) -> dict[str, Any]:
    return {"reducer": {"name": "acc", "op": "sum", "shape": ["bin"], **more}}


def update(index: list[str] | None = None, **more: Any) -> dict[str, Any]:
    indexed = {} if index == [] else {"index": index or ["index(col) - 2"]}
    return {"update": {"reducer": "acc", "over": ["col"], "value": "x", **indexed, **more}}


CLOSE = {"finalize": {"reducer": "acc", "into": "found"}}
STORE = {"store": {"tensor": "y", "over": ["bin"], "value": "found + keep"}}


def told(*body: dict[str, Any], **dims: int) -> list[tuple[str, str]]:
    try:
        resolve_case({"program": BASE | {"body": [KEEP, *body]}, "dims": DIMS | dims})
    except InvalidInput as error:
        return [(problem.field, problem.message) for problem in error.problems]
    return []


GUARD = "cast(x, int32) >= 0 and cast(x, int32) < bins"


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        # the shape, and what reads the result
        ([opened(shape=["zz"]), update(), CLOSE, STORE], "/body/1/reducer/shape/0", "not a column axis or a dim"),
        (
            [opened(shape=["rows"]), update(), CLOSE, STORE],
            "/body/1/reducer/shape/0",
            "no column axis runs over 'rows'",
        ),
        (
            [opened(shape=["bin", "bins"]), update(), CLOSE, STORE],
            "/body/1/reducer/shape/1",
            "no column axis runs over",
        ),
        ([opened(shape=["bin", "bin"]), update(), CLOSE, STORE], "/body/1/reducer/shape/1", "stands twice"),
        (
            [opened(), update(["0"]), CLOSE, {"let": {"name": "z", "value": "found"}}, STORE],
            "/body/4/let/value",
            "reducer array 'found' runs over bin",
        ),
        (
            [opened(), update(["0"]), {"let": {"name": "z", "value": "acc"}}, CLOSE, STORE],
            "/body/3/let/value",
            "read before its finalize",
        ),
        (
            [opened(), {"store": STORE["store"] | {"tensor": "acc"}}, CLOSE],
            "/body/2/store/tensor",
            "a reducer; use update",
        ),
        # the index
        ([opened(), update([]), CLOSE, STORE], "/body/2/update/index", "has 1 axes (bin), not 0"),
        ([opened(), update(["0", "1"]), CLOSE, STORE], "/body/2/update/index", "has 1 axes (bin), not 2"),
        ([opened(), update(["x"]), CLOSE, STORE], "/body/2/update/index/0", "an index is int32, not float32"),
        ([opened(), update(["x < 1.0"]), CLOSE, STORE], "/body/2/update/index/0", "an index is int32, not bool"),
        ([opened(), update(["index(bin)"]), CLOSE, STORE], "/body/2/update/index/0", "needs a statement over 'bin'"),
        ([opened(), update(["index(col)"]), CLOSE, STORE], "/body/2/update/index/0", "covers 0..6, outside 'acc'"),
        ([opened(), update(), CLOSE, STORE], "/body/2/update/index/0", "covers -2..4"),
        ([opened(), update(["last + 1"]), CLOSE, STORE], "/body/2/update/index/0", "covers 5..5"),
        ([opened(), update(["cast(x, int32)"]), CLOSE, STORE], "/body/2/update/index/0", "clamp it with min and max"),
        (
            [opened(), update(["cast(x, int32)"], where="cast(x, int32) >= 0"), CLOSE, STORE],
            "/body/2/update/index/0",
            "covers 0..2147483647",
        ),
        (
            [opened(), update(["cast(x, int32)"], where=GUARD.replace("and", "or")), CLOSE, STORE],
            "/body/2/update/index/0",
            "guard it: where",
        ),
        (
            [opened(), update(["cast(x, int32) + 1"], where=GUARD), CLOSE, STORE],
            "/body/2/update/index/0",
            "outside 'acc'",
        ),
        (
            [opened(), update(["index(col) * 1000000 * 1000000"]), CLOSE, STORE],
            "/body/2/update/index/0",
            "covers -2147483648..2147483647",
        ),
        # what may be done to a reducer
        ([opened(), update(["0"]), CLOSE, update(["0"]), STORE], "/body/4/update/reducer", "after its finalize"),
        ([opened(), update(["0"], value="index(col)"), CLOSE, STORE], "/body/2/update/value", "holds float32"),
        (
            [opened(), update(["0"]), {"finalize": CLOSE["finalize"] | {"where": "x > 0"}}, STORE],
            "/program/body/3/finalize/where",
            "finalize is one collective for all lanes",
        ),
        ([opened(op="-"), update(["0"]), CLOSE, STORE], "/body/1/reducer/op", "not associative"),
        ([opened(), update(["0"]), STORE], "/body/1/reducer", "never finalized"),
        # loops
        (
            [opened(), {"loop": {"count": "trips", "body": [update(["0"]), CLOSE]}}, STORE],
            "/body/2/loop/body/1/finalize",
            "finalize cannot stand in a loop; updates go inside",
        ),
        (
            [opened(), {"loop": {"count": "trips", "body": [update(["0"]), STORE]}}, CLOSE],
            "/body/2/loop/body/1/store",
            "cannot stand in a loop",
        ),
        (
            [opened(), {"loop": {"count": "trips", "body": []}}, update(["0"]), CLOSE, STORE],
            "/body/2/loop/body",
            "no st",
        ),
        (
            [opened(), {"loop": {"count": "cols", "index": "t", "body": [update(["t"])]}}, CLOSE, STORE],
            "/body/2/loop/body/0/update/index/0",
            "covers 0..6",
        ),
        (
            [
                opened(),
                {"loop": {"count": "cols", "index": "t", "body": [update(["0"], value="x[t + 1]")]}},
                CLOSE,
                STORE,
            ],
            "/body/2/loop/body/0/update/value",
            "covers 1..7",
        ),
        (
            [opened(), {"loop": {"count": "trips", "index": "t", "body": [update(["0"])]}}, CLOSE, STORE],
            "/body/2/loop/index",
            "never used",
        ),
        (
            [opened(), {"loop": {"count": "trips", "index": "x", "body": [update(["0"])]}}, CLOSE, STORE],
            "/body/2/loop/index",
            "already the name of a tensor",
        ),
        (
            [
                opened(),
                {"loop": {"count": "trips", "index": "t", "body": [update(["t"])]}},
                update(["t"]),
                CLOSE,
                STORE,
            ],
            "/body/3/update/index/0",
            "outside its loop",
        ),
        (
            [
                opened(),
                {"loop": {"count": "trips", "index": "t", "body": [update(["0"], value="x[t * t]")]}},
                CLOSE,
                STORE,
            ],
            "/program/body/2/loop/body/0/update/value",
            "a subscript is a sum of",
        ),
        (
            [opened(), update(["0"], value="x[t]"), CLOSE, STORE],
            "/program/body/2/update/value",
            "a subscript is a sum of",
        ),
    ],
)
def test_what_is_refused(body: list[dict[str, Any]], field: str, message: str) -> None:
    found = told(*body)
    field = field if field.startswith("/program") else f"/program{field}"
    assert any(where == field and message in what for where, what in found), found


@pytest.mark.parametrize(
    ("index", "where"),
    [
        ("index(col) - 2", "index(col) >= 2 and index(col) - 2 <= last and index(col) - 2 >= 0"),
        ("min(index(col), bins - 1)", None),
        ("max(min(cast(x, int32), last), 0)", None),
        ("cast(x, int32)", GUARD),
        ("cast(x, int32)", "0 <= cast(x, int32) and (x < 3.0 and bins > cast(x, int32))"),
        ("select(x > 0.0, 1, bins - 1)", None),
        ("abs(index(col) - 3) + 1", None),
        ("cast(x > 0.0, int32) * 4", None),
        ("index(row) * 0 + trips", None),
    ],
)
def test_indices_that_are_proved_or_guarded(index: str, where: str | None) -> None:
    more = {} if where is None else {"where": where}
    assert told(opened(), update([index], **more), CLOSE, STORE) == []


def case(*body: dict[str, Any], **dims: int) -> Any:
    return resolve_case({"program": BASE | {"body": [KEEP, *body]}, "dims": DIMS | dims})


def test_an_array_collects_what_its_index_names() -> None:
    x = np.random.default_rng(0).normal(0, 3, (2, 7))
    for order in ("any", "strict"):
        found = case(opened(order=order, seed="0.5"), update(["cast(x, int32)"], where=GUARD), CLOSE, STORE)
        expected = np.full((2, 5), 0.5 + 6)
        for r in range(2):
            for value in x[r]:
                if 0 <= int(value) < 5:
                    expected[r, int(value)] += value
        np.testing.assert_allclose(evaluate(found, {"x": x})["y"], expected, rtol=1e-14)


def test_a_strict_array_folds_in_index_order() -> None:
    found = case(
        opened(order="strict"), update(["index(col) - index(col)"], where="index(col) - index(col) == 0"), CLOSE, STORE
    )
    x = np.full((2, 7), 2.0**-24, dtype=np.float32)
    x[:, 0] = 1
    # each small term is lost against 1; any other order keeps some
    assert (evaluate(found, {"x": x}, dtype=np.float32)["y"][:, 0] == 7).all()
    assert (evaluate(found, {"x": x})["y"][:, 0] > 7).all()


def test_a_loops_index_counts_from_zero_and_zero_trips_leave_the_identity() -> None:
    inside = update(["t"], value="x[2 * t] * cast(t + 1, float32)", over=[])
    looped = {"loop": {"count": "trips", "index": "t", "body": [inside]}}
    body = [opened(op="max"), looped, CLOSE, STORE]
    x = np.arange(14.0).reshape(2, 7)
    for trips, wanted in ((0, [-math.inf] * 5), (3, [6.0, 10.0, 18.0, -math.inf, -math.inf])):
        document = BASE | {"body": [KEEP, *body]}
        found = resolve_case({"program": document, "dims": DIMS, "params": {"trips": trips, "last": 6 - trips}})
        assert evaluate(found, {"x": x})["y"][0].tolist() == wanted
    with pytest.raises(InvalidInput, match=r"covers 0\.\.8"):
        resolve_case({"program": document, "dims": DIMS, "params": {"trips": 5}})
    with pytest.raises(InvalidInput, match="would run -1 times"):
        resolve_case({"program": document, "dims": DIMS, "params": {"trips": -1}})


def test_the_digest_forgets_what_a_loops_index_is_called() -> None:
    def digest(name: str, subscript: str) -> str:
        looped = {"loop": {"count": "trips", "index": name, "body": [update([name], value=f"x[{subscript}]", over=[])]}}
        program = parse_program(BASE | {"body": [KEEP, opened(), looped, CLOSE, STORE]})
        assert verify(program) == ()
        assert parse_program(dump_program(program)) == program
        return program_digest(program, {"trips": 2, "last": 4})

    assert digest("t", "t + cols - bins") == digest("zebra", "zebra - bins + cols")
    assert digest("t", "t + cols - bins") != digest("t", "2 * t + cols - bins")


def test_an_input_is_shared_with_one_output() -> None:
    document = {
        "name": "probe",
        "dims": ["rows", "cols"],
        "axes": {axis: BASE["axes"][axis] for axis in ("row", "col")},
        "tensors": {"x": BASE["tensors"]["x"]}
        | {name: {"axes": ["row", "col"], "role": "output", "aliases": "x"} for name in ("y", "z")},
        "body": [{"store": {"tensor": name, "over": ["col"], "value": "x"}} for name in ("y", "z")],
    }
    assert [(p.field, p.message) for p in verify(parse_program(document))] == [
        ("/tensors/z/aliases", "'x' is shared with 'y' already, and outputs overlap nothing")
    ]
    del document["tensors"]["z"]["aliases"]
    assert verify(parse_program(document)) == ()
    with pytest.raises(InvalidInput, match=r"has its dtype|unsupported dtype"):
        resolve_case({"program": document, "dims": {"rows": 1, "cols": 1}, "dtypes": {"y": "float16"}})

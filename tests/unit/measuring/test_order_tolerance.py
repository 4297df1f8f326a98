"""Long products and short sums: whatever order a candidate chooses is within tolerance, and what is lost is not.

Of a row of equal factors lanes make equal roundings, which all reach the product: no left fold strays so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from search.measuring.checks import Tally, compare_output
from search.measuring.nudge import FEW_TERMS, stretched_products, stretched_sums
from search.measuring.oracle import OraclePass, compute_oracle
from search.program.case import Case
from search.program.resolve import resolve_case

COLS = 2048
PROGRAM: dict[str, Any] = {
    "name": "growth",
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row"], "role": "output"}},
    "body": [
        {"reduce": {"into": "grown", "op": "product", "over": ["col"], "value": "1.0 + x * 0.00048828125"}},
        {"store": {"tensor": "y", "over": [], "value": "grown"}},
    ],
}
SCALE = np.float32(2.0**-11)
"""A power of two: the factors of a row of twos are exact, so that nothing but the order of products is at work."""
NONE = np.array([], dtype=np.int64)


def case_of(**changes: Any) -> Case:
    return resolve_case({"program": PROGRAM | changes, "dims": {"rows": 9, "cols": COLS}})


@pytest.fixture(scope="module")
def passes() -> list[OraclePass]:
    return list(compute_oracle(case_of()))


def orders(factors: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Products of rows as lanes and accumulators make them: a fold in each, then halves onto halves."""
    for lanes in (1, 8, 32, 64, 256, 1024, COLS):
        held = factors.reshape(len(factors), -1, lanes)
        partial = held[:, 0, :].copy()
        for at in range(1, held.shape[1]):
            partial *= held[:, at, :]
        while partial.shape[1] > 1:
            half = partial.shape[1] // 2
            partial = partial[:, :half] * partial[:, half:]
        yield f"{lanes} lanes", partial


def failures(one: OraclePass, got: np.ndarray) -> dict[str, int]:
    tally = Tally()
    compare_output("y", got.reshape(-1, 1).astype(np.float32), one.expected["y"], NONE, tally)
    return tally.failures


def factors_of(one: OraclePass) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (np.float32(1.0) + one.given.inputs["x"] * SCALE).astype(np.float32)


def test_every_order_of_a_long_product_is_within_tolerance(passes: list[OraclePass]) -> None:
    assert any("x:constant" in one.given.patterns for one in passes)
    with np.errstate(all="ignore"):
        wrong = {
            (one.given.name, label): found
            for one in passes
            for label, got in orders(factors_of(one))
            if (found := failures(one, got))
        }
    assert wrong == {}


def test_a_factor_that_is_lost_or_taken_twice_is_not(passes: list[OraclePass]) -> None:
    normal = next(one for one in passes if one.given.name == "normal")
    factors = factors_of(normal)
    heavy = np.abs(factors - 1).argmax(axis=1)
    for change in (0.0, 2.0):
        spoiled = factors.astype(np.float64)
        for row, at in enumerate(heavy):
            spoiled[row, at] **= change
        assert failures(normal, spoiled.prod(axis=1)) == {"wrong_values": len(factors)}


@pytest.mark.parametrize(
    "body",
    [
        [
            {"reducer": {"name": "p", "op": "product", "order": "strict"}},
            {"update": {"reducer": "p", "over": ["col"], "value": "x"}},
            {"finalize": {"reducer": "p", "into": "grown"}},
            PROGRAM["body"][1],
        ],
        [{"reduce": {"into": "grown", "op": "sum", "over": ["col"], "value": "x"}}, PROGRAM["body"][1]],
        [
            PROGRAM["body"][0],
            {"store": {"tensor": "y", "over": [], "value": "select(grown > 1.0, 1.0, 2.0)"}},
        ],
    ],
    ids=["in a fixed order", "a sum", "what a comparison may jump over"],
)
def test_nothing_else_is_given_more_room(body: list[dict[str, Any]]) -> None:
    assert stretched_products(case_of(body=body)) == ()


SHORT = 8
CENTERED: dict[str, Any] = PROGRAM | {
    "name": "centered",
    "tensors": {"x": {"axes": ["row", "col"], "role": "input"}, "y": {"axes": ["row", "col"], "role": "output"}},
    "body": [
        {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "x - total * 0.125"}},
    ],
}


def sums(rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Sums of eight columns: halves of two folds, pairs, and folds from either end."""
    yield "two folds", np.add(fold(rows[:, :4]), fold(rows[:, 4:]))
    yield "two strides", np.add(fold(rows[:, ::2]), fold(rows[:, 1::2]))
    yield "backwards", fold(rows[:, ::-1])
    pairs = rows[:, :4] + rows[:, 4:]
    yield "tree", (pairs[:, 0] + pairs[:, 2]) + (pairs[:, 1] + pairs[:, 3])


def fold(rows: np.ndarray) -> np.ndarray:
    total = rows[:, 0].copy()
    for column in range(1, rows.shape[1]):
        total += rows[:, column]
    return total


def test_every_order_of_a_short_sum_of_large_terms_is_within_tolerance() -> None:
    """Among thousands of rows of eight numbers around 1000 some have sums that a dozen orders hit by luck."""
    case = resolve_case({"program": CENTERED, "dims": {"rows": 5000, "cols": SHORT}})
    (one,) = (found for found in compute_oracle(case) if found.given.name == "large_offset")
    rows = np.asarray(one.given.inputs["x"])
    wrong = {}
    for label, total in sums(rows):
        tally = Tally()
        compare_output("y", rows - (total * np.float32(0.125))[:, np.newaxis], one.expected["y"], NONE, tally)
        wrong |= {label: tally.failures} if tally.failures else {}
    assert wrong == {}
    # Terms that were taken as float16 are beyond it.
    rounded = fold(rows.astype(np.float16).astype(np.float32))
    tally = Tally()
    compare_output("y", rows - (rounded * np.float32(0.125))[:, np.newaxis], one.expected["y"], NONE, tally)
    assert tally.failures["wrong_values"] > 0.9 * rows.size


def test_sums_of_many_terms_are_not_stretched() -> None:
    assert stretched_sums(resolve_case({"program": CENTERED, "dims": {"rows": 2, "cols": FEW_TERMS}})) != ()
    assert stretched_sums(resolve_case({"program": CENTERED, "dims": {"rows": 2, "cols": FEW_TERMS + 1}})) == ()

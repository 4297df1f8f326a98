"""Any split, any tree, any empty parts: the states combine to what the direct definition gives. In float64."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from search.program.direct import State, absorbed, combined, direct, empty, gathered
from search.program.ir import STRUCTURED_OPS
from search.program.monoids import MONOIDS

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e308, -1e308, 1.0]
finite = st.floats(-1e6, 1e6)
"""Moderate values with many duplicates, so that ties happen."""
element = st.one_of(finite, st.sampled_from([-2.0, 0.0, 1.0, 3.0]), st.sampled_from(SPECIAL))


@st.composite
def split_rows(draw: st.DrawFn, elements: Any = element) -> tuple[list[float], list[int]]:
    """A row, and where it is cut: parts may be empty."""
    row = draw(st.lists(elements, min_size=1, max_size=24))
    cuts = draw(st.lists(st.integers(0, len(row)), max_size=8))
    return row, sorted(cuts)


def whole(op: str, row: list[float]) -> State:
    """The op's definition, written here in plain Python."""
    if op == "argmax":
        nans = [place for place, x in enumerate(row) if math.isnan(x)]
        best = nans[0] if nans else row.index(max(row))
        return np.asarray(row[best]), np.asarray(best)
    with np.errstate(all="ignore"):
        x = np.asarray(row)
        if op == "online_softmax":
            peak = math.nan if np.isnan(x).any() else x.max()
            return np.asarray(peak), np.asarray(
                math.fsum(terms) if np.isfinite(terms := np.exp(x - peak)).all() else terms.sum()
            )
        mean = x.sum() / len(x)
        return np.asarray(float(len(x))), np.asarray(mean), np.asarray(((x - mean) ** 2).sum())


def part_states(op: str, row: list[float], cuts: list[int], way: str) -> list[State]:
    """The states of the parts: by definition, one element after the other, or some elements at a time."""
    bounds = [0, *cuts, len(row)]
    states = []
    for start, stop in pairwise(bounds):
        state = empty(op, (1,), np.float64)
        if way == "some at a time" and MONOIDS[op].gather is not None:
            for first in range(start, stop, 3):
                state = gathered(op, state, [np.asarray([x]) for x in row[first : min(first + 3, stop)]])
        elif way != "whole":
            for place in range(start, stop):
                state = absorbed(op, state, np.asarray([row[place]]), np.asarray([place], dtype=np.int32))
        elif stop > start:
            state = direct(op, np.asarray(row[start:stop]), None, (0,))
            if op == "argmax":
                state = state[0], state[1] + np.int32(start)
        states.append(state)
    return states


def check(op: str, row: list[float], found: State) -> None:
    expected = whole(op, row)
    if op == "argmax":
        assert found[1] == expected[1]
        np.testing.assert_array_equal(found[0], expected[0])
        return
    # rounding of sums is relative to the magnitude of what was added, not to what is left of it
    finite_row = [abs(x) for x in row if math.isfinite(x)]
    scale = max(finite_row, default=0.0)
    absolute = [0.0, 1e-12 * scale + 1e-300, 1e-11 * scale * scale + 1e-300] if op == "welford" else [0.0, 0.0]
    for value, wanted, atol in zip(found, expected, absolute, strict=True):
        np.testing.assert_allclose(np.ravel(value)[0], wanted, rtol=1e-11, atol=atol)


@pytest.mark.parametrize("op", STRUCTURED_OPS)
@pytest.mark.parametrize("way", ["whole", "one by one", "some at a time"])
@given(data=st.data(), drawn=split_rows())
@example(data=None, drawn=([-math.inf, -math.inf, -math.inf], [1, 1]))
@example(data=None, drawn=([-math.inf, 2.0, -math.inf], [1, 2]))
@example(data=None, drawn=([1.0, math.inf, -math.inf], [1]))
@example(data=None, drawn=([math.inf, math.inf], [0, 1, 2]))
@example(data=None, drawn=([1.0, math.nan, 3.0, math.nan], [2]))
def test_any_split_and_any_tree_give_the_definition(
    op: str, way: str, data: st.DataObject | None, drawn: tuple[list[float], list[int]]
) -> None:
    row, cuts = drawn
    if op == "welford":
        # squares of what is near the largest float overflow, in the definition too
        row = [x if not math.isfinite(x) or abs(x) < 1e100 else 7.0 for x in row]
    with np.errstate(all="ignore"):
        states = part_states(op, row, cuts, way)
        while len(states) > 1:
            at = 0 if data is None else data.draw(st.integers(0, len(states) - 2))
            states[at : at + 2] = [combined(op, states[at], states[at + 1])]
    check(op, row, states[0])


@pytest.mark.parametrize("op", STRUCTURED_OPS)
@given(data=st.data(), row=st.lists(element, min_size=2, max_size=16))
def test_parts_combine_in_any_order(op: str, data: st.DataObject, row: list[float]) -> None:
    """Lanes own every L-th element: parts are not contiguous, and neighbours in a tree are not in index order."""
    if op == "welford":
        row = [x if not math.isfinite(x) or abs(x) < 1e100 else 7.0 for x in row]
    lanes = data.draw(st.integers(1, 8))
    order = data.draw(st.permutations(range(lanes)))
    with np.errstate(all="ignore"):
        total = empty(op, (1,), np.float64)
        for lane in order:
            state = empty(op, (1,), np.float64)
            for place in range(lane, len(row), lanes):
                state = absorbed(op, state, np.asarray([row[place]]), np.asarray([place], dtype=np.int32))
            total = combined(op, total, state)
    check(op, row, total)


@given(offset=st.floats(-1e9, 1e9), row=st.lists(st.floats(-1, 1), min_size=2, max_size=50))
def test_welford_loses_nothing_at_an_offset(offset: float, row: list[float]) -> None:
    """Where Σx² − (Σx)²/n has no digit left."""
    shifted = [offset + x for x in row]
    state = empty("welford", (1,), np.float64)
    for x in shifted:
        state = absorbed("welford", state, np.asarray([x]), np.asarray([0]))
    mean = math.fsum(shifted) / len(shifted)
    squares = math.fsum((x - mean) ** 2 for x in shifted)
    assert abs(float(state[2][0]) - squares) <= 1e-13 * abs(offset) * (1 + squares) * len(row) + 1e-12


def test_nothing_is_the_identity() -> None:
    for op in STRUCTURED_OPS:
        nothing = empty(op, (1,), np.float64)
        with np.errstate(all="ignore"):
            both = combined(op, nothing, nothing)
        for value, wanted in zip(both, nothing, strict=True):
            np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("op", ["online_softmax", "welford"])
def test_other_orders_of_addition_are_the_same_up_to_rounding(op: Any) -> None:
    """What the tolerance is drawn from: a left fold, and left folds over shuffled elements, masked ones left out."""
    generator = np.random.default_rng(3)
    value = (generator.normal(size=(5, 40, 3)) + 1000).astype(np.float32)
    where = generator.random((5, 40, 1)) < 0.7
    expected = direct(op, value.astype(np.float64), where, (1, 2))
    seen = set()
    for options in ({"fold": True}, *({"shuffle": generator} for _ in range(3))):
        found = direct(op, value, where, (1, 2), **options)  # type: ignore[arg-type]
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3)
        seen.add(found[-1].tobytes())
    assert len(seen) > 1

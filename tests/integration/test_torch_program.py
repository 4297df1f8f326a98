"""The torch baseline of programs that name no torch call: right on random programs, and named for what it is."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "property"))

from random_programs import KINDS, evaluate_by_hand, random_program

from search.measuring import torch_structured
from search.measuring.torch_program import NotExpressible, TorchProgram
from search.program.case import Case
from search.program.direct import combined, direct, empty
from search.program.ir import STRUCTURED_OPS
from search.program.resolve import resolve_case


def drawn(seed: int, kinds: tuple[str, ...] = KINDS) -> tuple[Any, Case, dict[str, np.ndarray]]:
    """A random program at a small shape, and its inputs in float32."""
    chance = random.Random(seed)
    document = random_program(chance, kinds)
    dims = {"rows": chance.randint(1, 3), "ni": chance.randint(1, 4), "nj": chance.randint(1, 5)}
    case = resolve_case({"program": document, "dims": dims, "params": {"trips": chance.randint(0, 3)}})
    made = np.random.default_rng(seed)
    inputs = {
        tensor.name: made.normal(size=case.shape(tensor)).astype(np.float32)
        for tensor in case.program.tensors
        if tensor.role == "input"
    }
    return document, case, inputs


@pytest.mark.parametrize("kinds", [KINDS, (*KINDS, *["structured"] * 3)], ids=["scalar", "structured"])
@pytest.mark.parametrize("seed", range(40))
def test_torch_operations_compute_what_the_document_says(seed: int, kinds: tuple[str, ...]) -> None:
    """Seeds whose comparisons fall the same way in single precision."""
    document, case, inputs = drawn(seed, kinds)
    found = TorchProgram(case)(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    expected = evaluate_by_hand(document, dict(case.dims), dict(case.params), exact)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == torch.float32
        assert found[name].is_contiguous()
        np.testing.assert_allclose(found[name].numpy(), values, rtol=2e-3, atol=2e-3, err_msg=name)


INF, NAN = math.inf, math.nan
ROWS = np.array(
    [
        [1.0, 3.0, 3.0, -2.0],
        [2.0, 2.0, 2.0, 2.0],
        [NAN, 1.0, NAN, 0.0],
        [5.0, NAN, 7.0, NAN],
        [-INF, -INF, -INF, -INF],
        [-INF, 0.5, -INF, 0.5],
        [1.0, INF, 2.0, INF],
        [INF, -INF, 1.0, NAN],
        [-0.0, 0.0, -0.0, 0.0],
    ],
    dtype=np.float32,
)
"""Ties, several NaN, infinities of either sign, zeros of either sign."""
MASKS = {
    "all": None,
    "some": np.resize([True, False, True, True, False], ROWS.shape),
    "one": np.resize([False, True, False, False], ROWS.shape),
    "none": np.zeros(ROWS.shape, dtype=bool),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("op", STRUCTURED_OPS)
def test_parts_and_their_combination_follow_the_definitions(op: Any, mask: str) -> None:
    """Ties, NaN, infinities, and parts in which nothing contributes."""
    held = MASKS[mask]
    value, where = torch.from_numpy(ROWS), None if held is None else torch.from_numpy(held)
    part = torch_structured.part(op, value, where, (1,))
    with np.errstate(all="ignore"):
        expected = direct(op, ROWS, held, (1,))
        for found, wanted in zip(part, expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)
        other = direct(op, ROWS[::-1].copy(), None, (1,))
        pairs = [(expected, other), (other, expected), (expected, empty(op, (len(ROWS), 1), np.float32))]
        for left, right in pairs:
            states = [tuple(torch.from_numpy(np.asarray(one)) for one in state) for state in (left, right)]
            for found, wanted in zip(torch_structured.combined(op, *states), combined(op, left, right), strict=True):
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_the_place_of_an_element_is_its_index_in_the_order_of_the_axes() -> None:
    value = torch.zeros(1, 3, 4)
    value[0, 1, 0] = value[0, 0, 3] = 1.0
    for places, index in (((1, 2), 3), ((2, 1), 1)):
        assert torch_structured.part("argmax", value, None, places)[1].tolist() == [[[index]]]
    alone = torch_structured.part("argmax", value, None, ())
    assert alone[0].equal(value)
    assert not alone[1].any()


def test_what_torch_has_no_operation_for_is_said_in_words() -> None:
    document = {
        "name": "bits",
        "dims": ["rows", "ni", "nj"],
        "axes": {
            "row": {"dim": "rows", "kind": "row"},
            "i": {"dim": "ni", "kind": "column"},
            "j": {"dim": "nj", "kind": "column"},
        },
        "tensors": {
            "h": {"axes": ["row", "j"], "role": "input", "dtype": "int32"},
            "b": {"axes": ["row", "i"], "role": "output", "dtype": "int32"},
        },
        "body": [
            {"reducer": {"name": "bins", "op": "xor", "dtype": "int32", "shape": ["i"]}},
            {"update": {"reducer": "bins", "over": ["j"], "value": "h", "index": ["max(min(h, ni - 1), 0)"]}},
            {"finalize": {"reducer": "bins", "into": "held"}},
            {"store": {"tensor": "b", "over": ["i"], "value": "held"}},
        ],
    }
    case = resolve_case({"program": document, "dims": {"rows": 2, "ni": 3, "nj": 4}})
    with pytest.raises(NotExpressible, match="no torch operation scatters with 'xor'"):
        TorchProgram(case)

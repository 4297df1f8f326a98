"""The torch baseline of programs that name no torch call: right on random programs, and named for what it is."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "property"))

from random_programs import evaluate_by_hand, random_program

from search.measuring.torch_program import TorchProgram
from search.program.case import Case
from search.program.resolve import resolve_case


def drawn(seed: int) -> tuple[Any, Case, dict[str, np.ndarray]]:
    """A random program at a small shape, and its inputs in float32."""
    chance = random.Random(seed)
    document = random_program(chance)
    dims = {"rows": chance.randint(1, 3), "ni": chance.randint(1, 4), "nj": chance.randint(1, 5)}
    case = resolve_case({"program": document, "dims": dims, "params": {"trips": chance.randint(0, 3)}})
    made = np.random.default_rng(seed)
    inputs = {
        tensor.name: made.normal(size=case.shape(tensor)).astype(np.float32)
        for tensor in case.program.tensors
        if tensor.role == "input"
    }
    return document, case, inputs


@pytest.mark.parametrize("seed", range(40))
def test_torch_operations_compute_what_the_document_says(seed: int) -> None:
    """Seeds whose comparisons fall the same way in single precision."""
    document, case, inputs = drawn(seed)
    found = TorchProgram(case)(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    exact = {name: value.astype(np.float64) for name, value in inputs.items()}
    expected = evaluate_by_hand(document, dict(case.dims), dict(case.params), exact)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == torch.float32
        assert found[name].is_contiguous()
        np.testing.assert_allclose(found[name].numpy(), values, rtol=2e-3, atol=2e-3, err_msg=name)

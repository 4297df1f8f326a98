"""The oracle against a plain evaluation of the document, point by point, which shares no code with it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))

from random_programs import KINDS, evaluate_by_hand, random_program

from search.program.document import dump_program, parse_program
from search.program.reference import evaluate
from search.program.resolve import resolve_case


@settings(max_examples=60, deadline=None)
@given(chance=st.randoms(use_true_random=False), trips=st.integers(0, 3))
def test_the_oracle_means_what_the_document_says(chance: random.Random, trips: int) -> None:
    document = random_program(chance, (*KINDS, "structured", "structured"))
    dims = {"rows": chance.randint(1, 3), "ni": chance.randint(1, 4), "nj": chance.randint(1, 5)}
    case = resolve_case({"program": document, "dims": dims, "params": {"trips": trips}})
    assert parse_program(dump_program(case.program)) == case.program
    made = np.random.default_rng(chance.getrandbits(32))
    inputs = {
        tensor.name: made.normal(size=case.shape(tensor)).astype(np.float32).astype(np.float64)
        for tensor in case.program.tensors
        if tensor.role == "input"
    }
    expected = evaluate_by_hand(document, dims, dict(case.params), inputs)
    for name, values in evaluate(case, inputs).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)

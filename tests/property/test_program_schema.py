"""The published JSON Schema: it takes every program that we take, and whatever it refuses we refuse too."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

sys.path.append(str(Path(__file__).parent))

from random_programs import random_program

from search.errors import InvalidInput
from search.program.document import dump_program, parse_program
from search.program.library import kernels
from search.program.schema import PROGRAM_SCHEMA
from search.program.verify import verify

SCHEMA = Draft202012Validator(PROGRAM_SCHEMA)
ODD = [1, 0.5, None, True, [], {}, "", "x", "no-name", "x" * 4001, ["i", "j"], {"let": {"name": "a", "value": "1"}}]


def taken(document: Any) -> bool:
    try:
        return not verify(parse_program(document))
    except InvalidInput:
        return False


def test_the_schema_is_one_and_takes_the_library() -> None:
    Draft202012Validator.check_schema(PROGRAM_SCHEMA)
    for kernel in kernels().values():
        SCHEMA.validate(dump_program(kernel.program))


@settings(max_examples=100, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_what_the_schema_refuses_is_refused(chance: random.Random) -> None:
    document = random_program(chance)
    assert taken(document)
    SCHEMA.validate(document)
    target: Any = document
    while True:
        keys = list(target) if isinstance(target, dict) else range(len(target))
        key = chance.choice(list(keys))
        if not isinstance(target[key], dict | list) or not target[key] or chance.random() < 0.2:
            break
        target = target[key]
    kind = chance.choice(["replace", "drop", "add"])
    if kind == "drop":
        del target[key]
    elif kind == "add" and isinstance(target, dict):
        target[chance.choice(["where", "index", "op", "note", "dtype"])] = chance.choice(ODD)
    else:
        target[key] = chance.choice(ODD)
    if not SCHEMA.is_valid(document):
        assert not taken(document), document

"""Strict JSON: whatever bytes come, a plain document or named problems come out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InvalidInput, Problem
from tuner_service.api.problems import printable
from tuner_service.strict_json import MAX_DEPTH, MAX_INTEGER, MAX_PROBLEMS, parse_object

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_every_plain_document_is_read_as_it_is(document: dict[str, Any]) -> None:
    for ascii_only in (True, False):
        assert parse_object(json.dumps(document, ensure_ascii=ascii_only).encode()) == document


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0d8NaN1e9-+.tfl ', max_size=60).map(str.encode))
def test_arbitrary_bytes_are_read_or_named(raw: bytes) -> None:
    problems: tuple[Problem, ...] = ()
    document: Any = {}
    try:
        document = parse_object(raw)
    except InvalidInput as error:
        problems = error.problems
        document = None
    assert isinstance(document, dict) is (not problems)
    assert len(problems) <= MAX_PROBLEMS
    json.dumps([document, *(problem.document() for problem in problems)], allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_depth_is_counted_outside_strings(depth: int) -> None:
    raw = b'{"s": "[[[[\\"[[[", "a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if depth <= MAX_DEPTH:
        assert parse_object(raw)["s"] == '[[[["[[['
    else:
        with pytest.raises(InvalidInput, match="nested"):
            parse_object(raw)


@pytest.mark.parametrize("value", [MAX_INTEGER, -MAX_INTEGER])
def test_the_largest_integers_are_read(value: int) -> None:
    assert parse_object(b'{"n": %d}' % value) == {"n": value}
    with pytest.raises(InvalidInput, match="too large"):
        parse_object(b'{"n": %d}' % (value * 2))


def test_pointers_name_keys_with_slashes() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_object(b'{"a/b": {"~": [1, NaN]}}')
    assert caught.value.problems[0].field == "/a~1b/~0/1"


@pytest.mark.parametrize(
    "value", [math.nan, {1: {2}}, "\ud800", "x" * 10_000, list(range(10_000)), None, 3, [{"a": 1}]]
)
def test_whatever_was_refused_can_be_repeated_in_an_answer(value: Any) -> None:
    shown = json.dumps(printable(value), allow_nan=False, ensure_ascii=False).encode()
    assert len(shown) < 1000

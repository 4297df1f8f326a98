"""Programs over HTTP, damaged and hostile: an answer that names the place, never a 500, and nothing of it is run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner_service.api.documented import PROGRAM_EXAMPLE

FULL: dict[str, Any] = {
    "name": "full",
    "params": {"eps": 1e-6, "trips": 2},
    "dims": ["rows", "cols", "heads"],
    "axes": {
        "row": {"dim": "rows", "kind": "row"},
        "head": {"dim": "heads", "kind": "column"},
        "col": {"dim": "cols", "kind": "column"},
    },
    "tensors": {
        "x": {"axes": ["row", "head", "col"], "role": "input"},
        "y": {"axes": ["row", "head", "col"], "role": "output", "like": "x"},
    },
    "body": [
        {"reducer": {"name": "acc", "op": "sum", "seed": "-eps"}},
        {"update": {"reducer": "acc", "over": ["head", "col"], "value": "x", "where": "x[head, 0] > 0.0"}},
        {"update": {"reducer": "acc", "over": [], "value": "trips * 1.0"}},
        {"reducer": {"name": "bins", "op": "max", "shape": ["head"], "order": "strict"}},
        {
            "loop": {
                "count": "trips",
                "index": "t",
                "body": [
                    {"let": {"name": "w", "value": "cast(t + 1, float32)"}},
                    {"update": {"reducer": "acc", "over": ["col"], "value": "x[t, col] * w"}},
                    {"update": {"reducer": "bins", "over": ["head", "col"], "value": "x", "index": ["index(head)"]}},
                ],
            }
        },
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"finalize": {"reducer": "bins", "into": "highest"}},
        {"stage": {}},
        {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x[0, col]"}},
        {"tile": {"name": "kept", "over": ["col"], "value": "x[heads - 1, col] - peak"}},
        {"let": {"name": "scale", "value": "select(total > 0.0, total, 1.0)"}},
        {"store": {"tensor": "y", "over": ["head", "col"], "value": "kept / scale + highest"}},
    ],
}
SPACE = {"width": [8], "input": ["reload"], "simd_scope": ["none"], "nontemporal": [False]}
CANARY = "tuner_fuzz_canary"
HOSTILE = [
    f"__import__('pathlib').Path('{CANARY}').touch()",
    f"open('{CANARY}', 'w')",
    f'x); system("touch {CANARY}"); (x',
    "x.__class__.__mro__",
    "lambda: x",
    "[x for x in y]",
    "x if x else y",
    "x := 1",
    "f'{x}'",
    "`touch canary`",
    "${x}",
    "{{ x }}",
    "'; DROP TABLE jobs; --",
    "../../etc/passwd",
    "/* x */",
    "// x",
    "x # y",
    "x\\\ny",
    "int",
    "for",
    "while",
    "class",
    "def",
    "return",
    "import",
    "restrict",
    "_Bool",
    "volatile",
    "goto",
    "lambda",
    "None",
    "self",
    "T",
    "x\u0445",  # a Cyrillic letter that looks like x
    "\u0445",
    "\uff58",  # a full-width x
    "x\u200b",  # zero width
    "\u202ex",  # right to left
    "\u2066x\u2069",
    "e\u0301",
    "\u00e9",
    "\u0660",  # a digit that is not ASCII
    "x \u2212 x",  # a minus that is not ASCII
    "x\u00a0+ x",
    "\U0001d465",
    "\ufeffx",
    "(" * 2000,
    "(" * 60 + "x" + ")" * 60,
    "-" * 3000 + "x",
    "not " * 900 + "true",
    "x" + " + x" * 900,
    "max(x, " * 300 + "x" + ")" * 300,
    "x[" * 300 + "0" + "]" * 300,
    "x" * 3999,
    "1" * 3999,
    "1e999999999",
    "-1e-999999999",
    "0x10",
    "1_000",
    "1..2",
    "nan",
    "inf - inf",
    "x[cols / 2]",
    "x[2147483647 * 2147483647 * 2147483647 * col]",
    "cols / rows",
    "x ** 2",
    "x // 2",
    "x % 2",
    "x < x < x",
    "x and x",
    "total",
    "exp",
    "exp()",
    "exp(x, x, x)",
    "index(x)",
    "cast(x, float64)",
    "",
    " ",
    ",",
    "\t\r\n",
]
ODD = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=12).filter(lambda text: "\0" not in text and text.isprintable()),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none(),
    st.booleans(),
    st.just([]),
    st.just({}),
    st.just([[[[]]]]),
    st.just({"a~b/c": {"": []}}),
    st.lists(st.sampled_from(["col", "row", "head", "x", "", "col"]), max_size=20),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += places(inner, (*path, key))
    return found


PLACES = places(FULL)


def damaged(path: tuple[Any, ...], value: Any, how: str) -> Any:
    """FULL with the thing at ``path`` replaced, dropped, repeated or, where it is a key, renamed to ``value``."""
    if not path:
        return value
    document = copy.deepcopy(FULL)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    last = path[-1]
    if how == "drop":
        del target[last]
    elif how == "repeat" and isinstance(target, list):
        target.insert(last, copy.deepcopy(target[last]))
    elif how == "rename" and isinstance(target, dict) and isinstance(value, str):
        target[value] = target.pop(last)
    else:
        target[last] = value
    return document


def answers(http: httpx.Client, program: Any) -> list[httpx.Response]:
    """What planning, tuning and looking a program up answer; each problem can be read and is at home in the body."""
    case = {"program": program, "dims": {"rows": 3, "cols": 5, "heads": 2}}
    job = {"cases": [case], "device": "cpu", "space": SPACE, "baselines": []}
    sent = {"/v1/plans": job, "/v1/jobs": job, "/v1/winners": case}
    found = []
    for path, body in sent.items():
        response = http.post(path, json=body)
        assert response.status_code in (200, 202, 404, 422), (path, response.text)
        if response.status_code == 422:
            for error in response.json()["errors"]:
                assert error["field"].startswith(("/cases/0", "/program", "/dims", "/params", "/kernel")), error
                assert error["message"], error
                assert error["message"].isprintable(), error
        found.append(response)
    # whatever is planned is tuned, and what is refused is refused everywhere
    assert {response.status_code == 422 for response in found} in ({True}, {False}), [r.text[:300] for r in found]
    return found


def test_the_program_that_is_damaged_is_sound(http: httpx.Client) -> None:
    assert [response.status_code for response in answers(http, FULL)] == [200, 202, 404]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PLACES), value=ODD, how=st.sampled_from(["replace", "replace", "drop", "repeat", "rename"]))
def test_a_damaged_program_is_planned_or_refused(http: httpx.Client, path: Any, value: Any, how: str) -> None:
    answers(http, damaged(path, value, how))


EXPRESSIONS = [path for path in PLACES if path and path[-1] in ("value", "where", "seed")]
NAMES = [path for path in PLACES if path and path[-1] in ("name", "into", "tensor", "reducer", "dim", "like")]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:30])
def test_a_hostile_text_is_data_wherever_it_stands(http: httpx.Client, text: str) -> None:
    changed = [damaged(path, text, "replace") for path in (EXPRESSIONS[0], EXPRESSIONS[-1], NAMES[0], NAMES[-1])]
    changed += [damaged(path, text, "rename") for path in (("params", "eps"), ("axes", "col"), ("tensors", "x"))]
    cases = [{"program": program, "dims": {"rows": 3, "cols": 5, "heads": 2}} for program in changed]
    response = http.post("/v1/plans", json={"cases": cases, "space": SPACE})
    assert response.status_code == 422, response.text
    for error in response.json()["errors"]:
        assert error["field"].startswith("/cases/")
        assert error["message"].isprintable()
    assert not Path(CANARY).exists()


def raw(program: str) -> bytes:
    return b'{"cases": [{"program": %s, "dims": {"rows": 3, "cols": 5}}]}' % program.encode("utf-8", "surrogatepass")


TEXT = json.dumps(PROGRAM_EXAMPLE)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (raw(TEXT.replace("1e-06", "NaN")), "/cases/0/program/params/eps"),
        (raw(TEXT.replace("1e-06", "-Infinity")), "/cases/0/program/params/eps"),
        (raw(TEXT.replace("1e-06", "1" + "0" * 5000)), "/cases/0/program/params/eps"),
        (raw(TEXT.replace('"name"', '"name": "other", "name"', 1)), "/cases/0/program/name"),
        (raw(TEXT.replace('"value"', '"value": "x", "value"', 1)), "/cases/0/program/body/0/reduce/value"),
        (raw(TEXT.replace("minmax_scale", "\\ud800")), "/cases/0/program/name"),
        (raw(TEXT.replace("minmax_scale", "a\\u0000b")), "/cases/0/program/name"),
        (raw(TEXT.replace('"x"', '{"a":' * 70 + "1" + "}" * 70, 1)), ""),
        (raw("[" * 100_000), ""),
        (raw(TEXT.replace("minmax_scale", "\ud800")), ""),
    ],
    ids=["nan", "infinity", "huge", "key twice", "inner key twice", "surrogate", "nul", "deep", "deeper", "no utf-8"],
)
def test_json_that_python_would_take_is_refused(http: httpx.Client, body: bytes, field: str) -> None:
    for path in ("/v1/plans", "/v1/jobs"):
        response = http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 422, response.text
        assert field in [error["field"] for error in response.json()["errors"]], response.text


def test_ten_megabytes_of_expression_are_not_even_read(http: httpx.Client, serve: Any, tmp_path: Path) -> None:
    program = copy.deepcopy(PROGRAM_EXAMPLE)
    program["body"][0]["reduce"]["value"] = "x" + " + x" * 2_500_000
    body = {"cases": [{"program": program, "dims": {"rows": 3, "cols": 5}}]}
    assert http.post("/v1/plans", json=body).status_code == 413
    with serve(tmp_path, max_body_bytes=2**25) as roomy:
        response = roomy.http.post("/v1/plans", json=body)
    assert response.status_code == 422
    [error] = response.json()["errors"]
    assert error["field"] == "/cases/0/program/body/0/reduce/value"
    assert error["message"] == "the text has 10000001 characters; split it with let and tile"
    assert len(response.content) < 2000

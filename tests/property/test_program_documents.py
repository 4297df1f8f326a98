"""Documents: dump and parse are inverse, and no JSON value of any kind breaks the parser."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.errors import InvalidInput
from search.program.digest import program_digest
from search.program.document import PROGRAM_SCHEMA, dump_program, parse_program
from search.program.expr import format_expression, parse_expression, program_scope
from search.program.ir import Program
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.program.verify import verify

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
        "x": {"axes": ["row", "head", "col"], "role": "input", "dtype": "float16"},
        "y": {"axes": ["row", "head", "col"], "role": "output", "like": "x", "aliases": "x"},
    },
    "body": [
        {"reducer": {"name": "acc", "op": "sum", "seed": "-eps"}},
        {"reducer": {"name": "bins", "op": "max", "dtype": "int32", "shape": ["head"], "order": "strict"}},
        {
            "loop": {
                "count": "trips",
                "index": "t",
                "body": [{"update": {"reducer": "acc", "over": ["head", "col"], "value": "x * cast(t, float32)"}}],
            }
        },
        {
            "update": {
                "reducer": "bins",
                "over": ["head", "col"],
                "value": "index(col)",
                "index": ["index(head)"],
                "where": "x[head, 0] > 0",
            }
        },
        {"finalize": {"reducer": "acc", "into": "total"}},
        {"finalize": {"reducer": "bins", "into": "best"}},
        {"stage": {}},
        {"reduce": {"into": "peak", "op": "max", "over": ["col"], "value": "x[0, col]"}},
        {"tile": {"name": "part", "over": ["col"], "value": "x[heads - 1, col] - peak"}},
        {"let": {"name": "scale", "value": "select(total > 0, total, 1)"}},
        {"store": {"tensor": "y", "over": ["head", "col"], "value": "part / scale + cast(best, float32)"}},
    ],
}


def test_every_construct_round_trips() -> None:
    program = parse_program(FULL)
    assert verify(program) == ()
    assert dump_program(program) == FULL
    assert parse_program(json.loads(json.dumps(dump_program(program)))) == program
    for kernel in kernels().values():
        assert parse_program(dump_program(kernel.program)) == kernel.program


# --- programs of random shape


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Legal programs: some reductions, lets and tiles over random axes, everything read by the last store."""
    columns = draw(st.lists(st.sampled_from(["i", "j", "k"]), min_size=1, max_size=3, unique=True))
    axes: dict[str, Any] = {"row": {"dim": "n", "kind": "row"}}
    axes |= {axis: {"dim": f"d{axis}", "kind": "column"} for axis in columns}
    numbers = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-9, 9))
    params: dict[str, Any] = draw(st.dictionaries(st.sampled_from(["p", "q"]), numbers))
    x_axes = draw(st.permutations(["row", *columns]))
    body: list[dict[str, Any]] = []
    readable = ["1.5", *params]
    functions = ["exp({})", "-{}", "({} + 2) / 3", "max({}, 0)", "select({} < 0, 1.0, 2.0)"]

    def value(atoms: list[str]) -> str:
        left, right = draw(st.sampled_from(atoms)), draw(st.sampled_from(atoms))
        return f"{draw(st.sampled_from(functions)).format(left)} {draw(st.sampled_from('+-*/'))} {right}"

    terms = ["x", *params]
    for number in range(draw(st.integers(0, 4))):
        name = f"v{number}"
        kind = draw(st.sampled_from(["reduce", "update", "let", "tile"]))
        if kind == "let":
            body.append({"let": {"name": name, "value": value(readable)}})
        elif kind == "tile":
            body.append({"tile": {"name": name, "over": columns, "value": value([*readable, "x"])}})
            terms.append(name)
            continue
        elif kind == "reduce":
            op = draw(st.sampled_from(["sum", "max", "min", "product"]))
            body.append({"reduce": {"into": name, "op": op, "over": columns, "value": value([*readable, "x"])}})
        else:
            opened: dict[str, Any] = {"name": f"r{number}", "op": "sum"}
            if draw(st.booleans()):
                opened["seed"] = value(readable)
            body.append({"reducer": opened})
            update = {"reducer": f"r{number}", "over": columns, "value": value([*readable, "x"]), "where": "x > 1.5"}
            body.append({"update": update})
            body.append({"finalize": {"reducer": f"r{number}", "into": name}})
        readable.append(name)
        terms.append(name)
    body.append({"store": {"tensor": "y", "over": columns, "value": " + ".join(terms)}})
    document = {
        "name": "random",
        "params": params,
        "dims": ["n", *(f"d{axis}" for axis in columns)],
        "axes": axes,
        "tensors": {
            "x": {"axes": list(x_axes), "role": "input"},
            "y": {"axes": ["row", *columns], "role": "output", "like": "x"},
        },
        "body": body,
    }
    return parse_program(document)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_parse_inverts_dump(program: Program) -> None:
    assert verify(program) == ()
    document = json.loads(json.dumps(dump_program(program)))
    again = parse_program(document)
    assert repr(again) == repr(program)
    params = {param.name: param.default for param in program.params}
    assert program_digest(again, params) == program_digest(program, params)
    scope = program_scope(program)
    for statement in program.body:
        expr = getattr(statement, "value", None)
        if expr is not None:
            assert repr(parse_expression(format_expression(expr), scope, pointer="")) == repr(expr)


# --- anything at all


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just(10**4000)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += places(inner, (*path, key))
    return found


PLACES = places(FULL)


def survives(document: Any) -> None:
    try:
        program = parse_program(document)
    except InvalidInput as error:
        problems = error.problems
    else:
        problems = verify(program)
    # every problem can be sent
    json.dumps([problem.document() for problem in problems], allow_nan=False).encode("utf-8")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), JSON, st.booleans())
def test_a_damaged_document_is_refused_or_judged(path: tuple[Any, ...], value: Any, drop: bool) -> None:
    document = copy.deepcopy(FULL)
    if not path:
        survives(value)
        return
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    if drop:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    survives(document)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_any_json_as_a_case(value: Any) -> None:
    for document in (
        value,
        {"kernel": "softmax", "dims": value},
        {"program": value},
        {"kernel": value, "params": value},
    ):
        try:
            resolve_case(document)
        except InvalidInput as error:
            json.dumps([problem.document() for problem in error.problems], allow_nan=False).encode("utf-8")


@pytest.mark.parametrize(
    ("path", "value", "field", "message"),
    [
        (["body"], [{"let": {"name": "a", "value": "1"}}] * 65, "/body", "65 are too many"),
        (["tensors"], {f"t{n}": {} for n in range(33)}, "/tensors", "33 are too many"),
        (["dims"], [f"d{n}" for n in range(17)], "/dims", "17 are too many"),
        (["name"], 3, "/name", "expected text"),
        (["extra"], 3, "/extra", "unknown key"),
        (["params", "eps"], "x", "/params/eps", "a number"),
        (["axes", "row", "kind"], "rows", "/axes/row/kind", "unknown kind"),
        (["axes", "row"], {"dim": "rows"}, "/axes/row/kind", "missing"),
        (["tensors", "x", "role"], "inout", "/tensors/x/role", "unknown role"),
        (["body", 0], {"reducer": {}, "update": {}}, "/body/0", "one key"),
        (["body", 0], {}, "/body/0", "one key"),
        (["body", 0], {"fuse": {}}, "/body/0", "one key"),
        (["body", 0, "reducer", "init"], 0, "/body/0/reducer/init", "unknown key"),
        (["body", 4, "finalize", "where"], "x > 0", "/body/4/finalize/where", "one collective"),
        (["body", 3, "update", "op"], "sum", "/body/3/update/op", "open another reducer"),
        (["body", 9, "let", "value"], 1, "/body/9/let/value", "an expression is text"),
        (["body", 3, "update", "index"], ["index("], "/body/3/update/index/0", "takes one axis"),
    ],
)
def test_problems_of_form_name_the_place(path: list[Any], value: Any, field: str, message: str) -> None:
    document = copy.deepcopy(FULL)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(InvalidInput) as caught:
        parse_program(document)
    assert [problem.field for problem in caught.value.problems if message in problem.message] == [field]


def test_loops_nest_only_so_deep() -> None:
    document = copy.deepcopy(FULL)
    inner: dict[str, Any] = {"let": {"name": "a", "value": "1"}}
    for _ in range(200):
        inner = {"loop": {"count": "trips", "body": [inner]}}
    document["body"] = [inner]
    with pytest.raises(InvalidInput, match="nested too deep"):
        parse_program(document)


def test_the_schema_knows_every_key_that_is_dumped() -> None:
    def check(value: Any, schema: dict[str, Any]) -> None:
        schema = PROGRAM_SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(value, dict):
            if "oneOf" in schema:
                (kind,) = value
                (schema,) = [option for option in schema["oneOf"] if option["title"] == kind]
            properties = schema.get("properties", {})
            assert set(schema.get("required", ())) <= set(value)
            for key, inner in value.items():
                extra = schema.get("additionalProperties", False)
                assert key in properties or extra is not False, key
                check(inner, properties.get(key) or extra)
        elif isinstance(value, list):
            for inner in value:
                check(inner, schema["items"])

    check(FULL, PROGRAM_SCHEMA)
    for kernel in kernels().values():
        check(dump_program(kernel.program), PROGRAM_SCHEMA)

"""Expression text: what it means, what is refused, and that nothing else ever happens."""

from __future__ import annotations

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from search.errors import InvalidInput, Problem
from search.program.expr import Scope, format_expression, parse_expression
from search.program.ir import (
    FUNCTIONS,
    Affine,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Index,
    Load,
    Logical,
    Name,
    Select,
    Unary,
)
from search.program.limits import Limits

SCOPE = Scope(
    params=("eps", "shift"),
    dims=("rows", "cols", "half"),
    axes=("row", "col", "head"),
    row_axis="row",
    tensors={"x": ("row", "col"), "w": ("col",), "s": ("row",), "q": ("row", "head", "col"), "t": ("col", "row")},
)


def parse(text: str) -> Expr:
    return parse_expression(text, SCOPE, pointer="/body/0/let/value")


def refusal(text: str) -> Problem:
    with pytest.raises(InvalidInput) as caught:
        parse(text)
    (problem,) = caught.value.problems
    return problem


def at(*terms: tuple[str, int], constant: int = 0) -> Affine:
    return Affine(terms=terms, constant=constant)


A, B, C = Name(name="a"), Name(name="b"), Name(name="c")
X = Load(tensor="x", index=(at(("row", 1)), at(("col", 1))))


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("a - b - c", Binary(op="-", left=Binary(op="-", left=A, right=B), right=C)),
        ("a - (b - c)", Binary(op="-", left=A, right=Binary(op="-", left=B, right=C))),
        ("a + b * c", Binary(op="+", left=A, right=Binary(op="*", left=B, right=C))),
        ("-a * b", Binary(op="*", left=Unary(op="-", operand=A), right=B)),
        ("-1", Const(value=-1)),
        ("-(1)", Unary(op="-", operand=Const(value=1))),
        ("a - 1", Binary(op="-", left=A, right=Const(value=1))),
        ("-inf", Const(value=float("-inf"))),
        (
            "not a < b and c < 1.5",
            Logical(
                op="and",
                left=Unary(op="not", operand=Compare(op="<", left=A, right=B)),
                right=Compare(op="<", left=C, right=Const(value=1.5)),
            ),
        ),
        (
            "a < b or b < c and c < a",
            Logical(
                op="or",
                left=Compare(op="<", left=A, right=B),
                right=Logical(op="and", left=Compare(op="<", left=B, right=C), right=Compare(op="<", left=C, right=A)),
            ),
        ),
        ("x", X),
        ("x[col]", X),
        ("x[row, col]", X),
        ("x[col + half - 1]", Load(tensor="x", index=(at(("row", 1)), at(("col", 1), ("half", 1), constant=-1)))),
        ("x[2 * (col - half) + 3]", Load(tensor="x", index=(at(("row", 1)), at(("col", 2), ("half", -2), constant=3)))),
        ("x[2 * 3 * col]", Load(tensor="x", index=(at(("row", 1)), at(("col", 6))))),
        ("x[col - col + shift * 4]", Load(tensor="x", index=(at(("row", 1)), at(("shift", 4))))),
        ("w[0]", Load(tensor="w", index=(at(),))),
        ("s", Load(tensor="s", index=(at(("row", 1)),))),
        (
            "q[head, -col + cols]",
            Load(tensor="q", index=(at(("row", 1)), at(("head", 1)), at(("col", -1), ("cols", 1)))),
        ),
        ("t[col + 1]", Load(tensor="t", index=(at(("col", 1), constant=1), at(("row", 1))))),
        ("select(a < b, a, 0)", Select(condition=Compare(op="<", left=A, right=B), then=A, otherwise=Const(value=0))),
        ("cast(index(col), float32)", Cast(dtype="float32", value=Index(axis="col"))),
        ("max(a, exp(-b))", Call(function="max", args=(A, Call(function="exp", args=(Unary(op="-", operand=B),))))),
        (" a\n\t+ b ", Binary(op="+", left=A, right=B)),
        ("true", Const(value=True)),
        ("1e-6", Const(value=1e-6)),
        (".5", Const(value=0.5)),
        ("2147483647", Const(value=2147483647)),
        ("-2147483648", Const(value=-2147483648)),
    ],
)
def test_meaning(text: str, expr: Expr) -> None:
    parsed = parse(text)
    # dataclass equality takes 1, 1.0 and True for equal; the repr does not
    assert repr(parsed) == repr(expr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a number"),
        ("a +", "expected a number"),
        ("a b", "expected an operator"),
        ("(a", "expected ')'"),
        ("a)", "expected an operator"),
        (") + (", "expected a number"),
        ("a < b < c", "not chained"),
        ("a == b != c", "not chained"),
        ("a ** b", "there are no powers; write x * x"),
        ("a // b", "declare the quotient as a dim"),
        ("a % b", "cannot read"),
        ("a if b else c", "choose with select(condition, then, otherwise)"),
        ("lambda: a", "cannot read"),
        ("__import__('os')", "cannot read"),
        ("x.dtype", "cannot read"),
        ("a; b", "cannot read"),
        ("a # b", "cannot read"),
        ("'a'", "cannot read"),
        ("{a}", "cannot read"),
        ("a := b", "cannot read"),
        ("a\x00", "cannot read"),
        ("é", "U+00E9 is LATIN SMALL LETTER E WITH ACUTE, and expressions are ASCII"),
        ("a\u200b", "U+200B is ZERO WIDTH SPACE"),
        ("a % b", "there are no remainders"),
        ("y = a", "compare with =="),
        ("'a'", "text is no value"),
        ("x.real", "nothing has attributes"),
        ("a & b", "joined with 'and'"),
        ("x[cols // 2]", "declare the quotient as a dim"),
        ("ﬁ", "cannot read"),
        ("1is", "cannot read"),
        ("1j", "cannot read"),
        ("1_000", "cannot read"),
        ("0x10", "cannot read"),
        ("1..2", "cannot read"),
        ("+a", "expected a number"),
        ("a + not b", "in parentheses"),
        ("nan", "reserved"),
        ("if", "reserved"),
        ("float32", "reserved"),
        ("1e999", "does not fit in float32"),
        ("3.5e38", "does not fit in float32"),
        ("2147483648", "does not fit in int32"),
        ("-2147483649", "does not fit in int32"),
        ("9" * 3999, "does not fit in int32"),
        ("open(a)", "'open' is not a function"),
        ("exp", "exp is a function"),
        ("exp()", "expected a number"),
        ("exp(a, b)", "takes 1 argument"),
        ("max(a)", "takes 2 argument"),
        ("select(a, b)", "takes 3 argument"),
        ("cast(a)", "takes 2 argument"),
        ("cast(a, float64)", "takes a dtype"),
        ("cast(a, bool)", "takes a dtype"),
        ("index(a)", "takes one axis"),
        ("index(col, row)", "expected ')'"),
        ("a[col]", "not a tensor"),
        ("x[]", "expected a number"),
        ("x[col, col, col]", "do not fit"),
        ("q[col]", "do not fit"),
        ("x[a]", "a subscript is"),
        ("x[x]", "a subscript is"),
        ("x[col * col]", "a subscript is"),
        ("x[col / 2]", "a subscript is not divided; declare the quotient of extents as a dim"),
        ("x[1.0]", "a subscript is"),
        ("x[true]", "a subscript is"),
        ("x[2147483647 * 2147483647 * col]", "does not fit in int32"),
        ("a" * 4001, "has 4001 characters"),
        ("(" * 4000, "nested too deep"),
        ("-" * 4000, "nested too deep"),
        ("not " * 999 + "a", "nested too deep"),
        ("exp(" * 900, "nested too deep"),
        ("x[" * 900, "nested too deep"),
        ("+".join("a" * 65), "too deep"),
        ("x[" + "+".join("1" * 1900) + "]", "too deep"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    problem = refusal(text)
    assert message in problem.message
    assert problem.field == "/body/0/let/value"
    assert problem.value == text or len(text) > 200


def test_a_refusal_names_position_text_and_what_is_allowed() -> None:
    problem = refusal("exp(a) + sinh(b)")
    assert problem.value == "exp(a) + sinh(b)"
    assert "position 9" in problem.message
    assert "'sinh'" in problem.message
    assert problem.allowed == [*FUNCTIONS, "select", "cast", "index"]


def test_limits_hold_exactly() -> None:
    tight = Limits(expression_chars=9, expression_depth=3, expression_nodes=5)

    def accepted(text: str) -> bool:
        try:
            parse_expression(text, SCOPE, pointer="", limits=tight)
        except InvalidInput:
            return False
        return True

    assert accepted("a + b + c")
    assert not accepted("a + b  + c")
    assert accepted("--a")
    assert not accepted("---a")
    assert not accepted("-(-a)")
    assert not accepted("a+b+c+d")
    assert accepted("a+b-(c)")
    assert not accepted("a*b+a*b")


def test_deep_trees_do_not_reach_the_recursion_limit() -> None:
    nested = "exp(" * 60 + "a" + ")" * 60
    # the parser must leave room for whatever called it
    frames = 0
    frame = sys._getframe()
    while frame is not None:
        frames += 1
        frame = frame.f_back  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(frames + 450)
    try:
        assert format_expression(parse(nested)) == nested
    finally:
        sys.setrecursionlimit(before)


def test_format_with_a_scope_reads_as_written() -> None:
    text = "exp(x - peak) * x[col + half] / (s * w[0])"
    assert format_expression(parse(text), SCOPE) == text
    assert format_expression(parse(text)) == "exp(x[row, col] - peak) * x[row, col + half] / (s[row] * w[0])"


# --- any text, any tree


WORDS = "x w a col half and not or select cast index float32 exp inf e"
SIGNS = "- + * / ( ) [ ] , < == ** . é 1 2.5 1e9 0"
FRAGMENTS = st.sampled_from([*WORDS.split(" "), *SIGNS.split(" "), " ", "\n", "\ud800"])


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=25).map("".join), st.binary().map(repr)))
@example("\ud800")
@example("1" * 4000)
@example("\r")
def test_any_text_gives_an_expression_or_invalid_input(text: str) -> None:
    try:
        expr = parse(text)
    except InvalidInput as error:
        # must survive being sent as JSON
        str([problem.document() for problem in error.problems]).encode("utf-8")
        return
    assert repr(parse(format_expression(expr, SCOPE))) == repr(expr)


def subscripts() -> st.SearchStrategy[Affine]:
    factors = st.integers(-5, 5).filter(bool)
    terms = st.dictionaries(st.sampled_from(["col", "half", "shift"]), factors, max_size=3)
    return st.builds(lambda t, c: Affine(terms=tuple(sorted(t.items())), constant=c), terms, st.integers(-9, 9))


def expressions() -> st.SearchStrategy[Expr]:
    row = at(("row", 1))
    numbers = st.one_of(
        st.integers(-(2**31), 2**31 - 1),
        st.floats(width=32, allow_nan=False),
        st.booleans(),
    )
    leaves = st.one_of(
        st.builds(lambda v: Const(value=v), numbers),
        st.sampled_from(["a", "eps", "cols", "orange", "nota"]).map(lambda n: Name(name=n)),
        st.sampled_from(["col", "row"]).map(lambda a: Index(axis=a)),
        st.sampled_from([X, Load(tensor="w", index=(at(("col", 1)),)), Load(tensor="s", index=(row,))]),
        st.builds(lambda s: Load(tensor="x", index=(row, s)), subscripts()),
        st.builds(lambda s: Load(tensor="t", index=(s, row)), subscripts()),
        st.builds(lambda s: Load(tensor="x", index=(s, s)), subscripts()),
    )

    def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(lambda o, e: Unary(op=o, operand=e), st.sampled_from(["-", "not"]), inner),
            st.builds(lambda o, a, b: Binary(op=o, left=a, right=b), st.sampled_from("+-*/"), inner, inner),
            st.builds(
                lambda o, a, b: Compare(op=o, left=a, right=b), st.sampled_from(["<", "<=", "==", "!="]), inner, inner
            ),
            st.builds(lambda o, a, b: Logical(op=o, left=a, right=b), st.sampled_from(["and", "or"]), inner, inner),
            st.builds(lambda a, b, c: Select(condition=a, then=b, otherwise=c), inner, inner, inner),
            st.builds(lambda f, a: Call(function=f, args=(a,)), st.sampled_from(["exp", "abs", "erf"]), inner),
            st.builds(lambda f, a, b: Call(function=f, args=(a, b)), st.sampled_from(["min", "max"]), inner, inner),
            st.builds(lambda d, a: Cast(dtype=d, value=a), st.sampled_from(["float32", "int32", "float16"]), inner),
        )

    return st.recursive(leaves, larger, max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(expressions())
@example(Unary(op="-", operand=Const(value=-1)))
@example(Unary(op="-", operand=Unary(op="-", operand=Const(value=1))))
@example(Unary(op="-", operand=Const(value=float("inf"))))
@example(Unary(op="-", operand=Const(value=True)))
@example(Binary(op="-", left=Const(value=-1), right=Const(value=-1)))
@example(Const(value=-0.0))
@example(Unary(op="not", operand=Unary(op="not", operand=A)))
def test_parse_inverts_format(expr: Expr) -> None:
    assert repr(parse(format_expression(expr, SCOPE))) == repr(expr)
    assert repr(parse(format_expression(expr))) == repr(expr)

"""Expressions as text: what must be hidden from TileLang's simplifier is, constants are exact, types are converted."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.lowering import names
from search.lowering.expressions import Scope, UnsupportedError, Value, nearest_float32
from search.program.ir import (
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

X, N = Name(name="x"), Name(name="n")


def scope() -> Scope:
    return Scope(
        names={"x": Value(text="v_x", dtype="float32"), "n": Value(text="65", dtype="int32")},
        coordinates={"col": "e", "row": "bx"},
        used=set(),
    )


def binary(op: str, left: Expr, right: Expr) -> Expr:
    return Binary(op=op, left=left, right=right)


@pytest.mark.parametrize(
    ("expr", "text", "dtype"),
    [
        (binary("+", X, X), "v_x + v_x", "float32"),
        (binary("-", X, X), "sub(v_x, v_x)", "float32"),
        (binary("*", X, Const(value=0)), "v_x * f32(0.0)", "float32"),
        (binary("*", binary("+", X, X), X), "(v_x + v_x) * v_x", "float32"),
        (binary("/", X, N), "v_x / f32(65.0)", "float32"),
        (binary("-", N, Const(value=1)), "65 - 1", "int32"),
        (binary("+", X, Index(axis="col")), "v_x + T.cast(e, F32)", "float32"),
        (Unary(op="-", operand=X), "neg(v_x)", "float32"),
        (Unary(op="-", operand=N), "0 - 65", "int32"),
        (Unary(op="-", operand=Index(axis="col")), "neg_i32(e)", "int32"),
        (binary("+", Index(axis="col"), N), "add_i32(e, 65)", "int32"),
        (binary("*", Index(axis="col"), Index(axis="col")), "mul_i32(e, e)", "int32"),
        (Cast(dtype="float16", value=X), "round_float16(v_x)", "float32"),
        (Cast(dtype="bfloat16", value=N), "round_bfloat16(f32(65.0))", "float32"),
        (Compare(op="<", left=X, right=Const(value=1)), "lt(v_x, f32(1.0))", "bool"),
        (Unary(op="not", operand=Compare(op="<", left=X, right=X)), "logical_not(lt(v_x, v_x))", "bool"),
        (
            Logical(op="and", left=Const(value=True), right=Compare(op="!=", left=N, right=N)),
            "logical_and(1, ne(65, 65))",
            "bool",
        ),
        (
            Select(condition=Const(value=True), then=X, otherwise=Const(value=0)),
            "select(1, v_x, f32(0.0))",
            "float32",
        ),
        (Select(condition=Const(value=True), then=N, otherwise=N), "select_i32(1, 65, 65)", "int32"),
        (Call(function="exp", args=(X,)), "exp(v_x)", "float32"),
        (Call(function="max", args=(X, N)), "maximum(v_x, f32(65.0))", "float32"),
        (Call(function="max", args=(N, N)), "maximum_i32(65, 65)", "int32"),
        (Cast(dtype="int32", value=X), "truncate(v_x)", "int32"),
        (Cast(dtype="float32", value=Index(axis="row")), "T.cast(bx, F32)", "float32"),
    ],
)
def test_text_of_each_kind_of_node(expr: Expr, text: str, dtype: str) -> None:
    value = scope().render(expr)
    assert (value.text, value.dtype) == (text, dtype)


def test_helpers_that_are_called_are_known_to_the_preamble() -> None:
    here = scope()
    here.render(binary("-", Call(function="tanh", args=(X,)), Const(value=1.5)))
    assert here.used == {"sub", "tanh", "f32"}


def test_a_bound_value_is_a_call_so_that_it_is_not_copied() -> None:
    here = scope()
    assert here.bound(here.render(binary("*", X, X))).text == "named(v_x * v_x)"
    assert here.bound(here.render(Call(function="exp", args=(X,)))).text == "exp(v_x)"


def test_affine_subscripts() -> None:
    here = scope()
    assert here.affine(Affine(terms=(("col", 1), ("n", 1)), constant=-3)) == "e + 62"
    assert here.affine(Affine(terms=(("col", 2),), constant=1)) == "e * 2 + 1"
    assert here.affine(Affine(terms=(("col", -1),), constant=64)) == "e * (-1) + 64"
    assert here.affine(Affine(terms=())) == "0"


@given(st.floats(allow_nan=False))
def test_constants_are_the_nearest_float32(number: float) -> None:
    made = nearest_float32(number)
    if math.isinf(made):
        assert abs(number) >= 3.4028235e38
        assert math.copysign(1, made) == math.copysign(1, number)
        return
    assert struct.unpack("<f", struct.pack("<f", made))[0] == made
    bits = struct.unpack("<i", struct.pack("<f", made))[0]
    for neighbour in (bits - 1, bits + 1):
        other = struct.unpack("<f", struct.pack("<i", max(min(neighbour, 2**31 - 1), -(2**31))))[0]
        if math.isfinite(other):
            assert abs(made - number) <= abs(other - number)


def test_what_cannot_be_expressed_is_said_and_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="lifts loads"):
        scope().render(Load(tensor="x", index=()))


@pytest.mark.parametrize("name", ["", "1a", "a b", "a\n", "a;import os", "é", "_a", "a" * 97, 'x"', "a.b"])
def test_no_name_but_a_plain_identifier_reaches_the_text(name: str) -> None:
    for kind in (names.tensor, names.dim, names.tile, names.scalar, names.partials, names.value, names.stream):
        with pytest.raises(ValueError, match="not an identifier"):
            kind(name)


def test_kinds_of_names_never_meet() -> None:
    kinds = (names.tensor, names.dim, names.tile, names.scalar, names.partials, names.value, names.stream)
    assert len({kind("for") for kind in kinds}) == len(kinds)
    assert names.plain(names.tensor("x")) == "x"

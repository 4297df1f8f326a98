"""Expressions as TileLang text.

TileLang's simplifier is not IEEE for float32 (it turns ``(x + C) - C`` into ``x``, ``x - x`` and ``x * 0`` into 0,
``not x < y`` into ``y <= x``), its min and max drop NaN, and it prints constants with seven digits. So ``+ * /`` of
float32 values stay operators, which were seen to survive; everything else is a call of a function of our header, which
the simplifier cannot see into, and a constant is the bits of its nearest float32. int32 wraps, and neither C nor the
simplifier lets an operator do that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from search.lowering.indexing import join, product
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
    ReduceOp,
    Select,
    Unary,
)

FLOAT, INT, BOOL = "float32", "int32", "bool"
NARROW = ("float16", "bfloat16")
"""Dtypes that are stored as 16 bits and computed in float32."""
_WRAPPING = {"+": "add_i32", "-": "sub_i32", "*": "mul_i32"}
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_FLOAT_FUNCTIONS = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "erf": "erf",
    "sigmoid": "sigmoid",
    "abs": "absolute",
    "min": "minimum",
    "max": "maximum",
}
IDENTITIES: dict[tuple[ReduceOp, str], str] = {
    ("sum", FLOAT): "f32(0.0)",
    ("product", FLOAT): "f32(1.0)",
    ("max", FLOAT): "f32(-inf)",
    ("min", FLOAT): "f32(inf)",
    ("sum", INT): "0",
    ("product", INT): "1",
    ("max", INT): "T.min_value(I32)",
    ("min", INT): "T.max_value(I32)",
    ("and", INT): "-1",
    ("or", INT): "0",
    ("xor", INT): "0",
}
"""Value that every partial starts from."""


class UnsupportedError(ValueError):
    """A construct that this lowering cannot express; becomes a rejection, never wrong code."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A rendered expression: text, dtype, and whether it must be bracketed as an operand."""

    text: str
    dtype: str
    loose: bool = False
    opaque: bool = False
    """The simplifier cannot copy it: a call of a header function."""

    @property
    def operand(self) -> str:
        """The text, bracketed if it is an operator expression."""
        return f"({self.text})" if self.loose else self.text


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What names mean at one place of the text."""

    names: Mapping[str, Value]
    coordinates: Mapping[str, str]
    """Axis → text of its coordinate."""
    used: set[str]
    """Helpers that the text calls; the preamble defines exactly these."""

    def call(self, helper: str, dtype: str, *args: Value) -> Value:
        """A call of one of our helpers."""
        self.used.add(helper)
        return Value(text=f"{helper}({', '.join(arg.text for arg in args)})", dtype=dtype, opaque=True)

    def render(self, expr: Expr) -> Value:
        """The text of an expression. Raises UnsupportedError."""
        return _RENDERERS[type(expr)](self, expr)

    def render_float(self, expr: Expr) -> Value:
        """The text of an expression, converted to float32."""
        return self.as_float(self.render(expr))

    def render_as(self, expr: Expr, dtype: str) -> Value:
        """The text of an expression, converted to the dtype of what it is stored in."""
        if dtype == FLOAT:
            return self.render_float(expr)
        value = self.render(expr)
        if dtype == INT and value.dtype in (INT, BOOL):
            return Value(text=value.text, dtype=INT, loose=value.loose, opaque=value.opaque)
        if dtype == value.dtype:
            return value
        raise UnsupportedError(f"{value.dtype} stored as {dtype}")

    def widened(self, stored: str, dtype: str) -> Value:
        """The value of an element whose storage reads ``stored``."""
        if dtype in NARROW:
            return self.call(f"from_{dtype}", FLOAT, Value(text=stored, dtype=dtype))
        return Value(text=stored, dtype=dtype)

    def narrowed(self, expr: Expr, dtype: str) -> Value:
        """The text of an expression as an element of that dtype is stored."""
        if dtype in NARROW:
            return self.call(f"to_{dtype}", dtype, self.render_float(expr))
        return self.render_as(expr, dtype)

    def bound(self, value: Value) -> Value:
        """The value in a form that TileLang binds once instead of copying it to each use."""
        if value.opaque:
            return value
        return self.call("named_i32" if value.dtype != FLOAT else "named", value.dtype, value)

    def as_float(self, value: Value) -> Value:
        """Conversion to float32 of an int32 or a bool (exact for literals)."""
        if value.dtype == FLOAT:
            return value
        if _literal(value):
            return self.constant(float(int(value.text)))
        return self.converted(value)

    def converted(self, value: Value) -> Value:
        """An int32 or a bool, converted to float32."""
        return Value(text=f"T.cast({value.text}, F32)", dtype=FLOAT)

    def constant(self, number: float) -> Value:
        """A float32 constant, exact to the bit."""
        self.used.add("f32")
        return Value(text=f"f32({nearest_float32(number)!r})", dtype=FLOAT)

    def arithmetic(self, sign: str, left: Value, right: Value) -> Value:
        """An operator of two float32 values, or of two literals."""
        dtype = FLOAT if left.dtype == FLOAT else INT
        return Value(text=f"{left.operand} {sign} {right.operand}", dtype=dtype, loose=True)

    def combine(self, op: ReduceOp, left: Value, right: Value) -> Value:
        """One step of a reduction; max and min propagate NaN."""
        dtype = left.dtype
        if op in ("sum", "product"):
            sign = "+" if op == "sum" else "*"
            if dtype == INT:
                return self.call(_WRAPPING[sign], INT, left, right)
            return self.arithmetic(sign, left, right)
        if op in ("max", "min"):
            return self.call(
                {"max": "maximum", "min": "minimum"}[op] + ("" if dtype == FLOAT else "_i32"), dtype, left, right
            )
        return self.call(f"bit_{op}", dtype, left, right)

    def affine(self, subscript: Affine) -> str:
        """Index text of one subscript."""
        terms = []
        for name, coefficient in subscript.terms:
            text = self.coordinates.get(name)
            if text is None:
                text = self.names[name].text
            terms.append(product(text, coefficient) if coefficient >= 0 else f"{text} * ({coefficient})")
        return join(*terms, str(subscript.constant))


def nearest_float32(number: float) -> float:
    """The float32 nearest to a Python float (overflow gives infinity)."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _const(scope: Scope, expr: Const) -> Value:
    if isinstance(expr.value, bool):
        return Value(text=str(int(expr.value)), dtype=BOOL)
    if isinstance(expr.value, int) and abs(expr.value) < 2**31:
        return Value(text=str(expr.value), dtype=INT)
    return scope.constant(float(expr.value))


def _name(scope: Scope, expr: Name) -> Value:
    return scope.names[expr.name]


def _index(scope: Scope, expr: Index) -> Value:
    text = scope.coordinates[expr.axis]
    return Value(text=text, dtype=INT, loose=" " in text)


def _load(scope: Scope, expr: Load) -> Value:
    raise UnsupportedError(f"load of {expr.tensor} inside an expression: planning lifts loads into ops")


def _unary(scope: Scope, expr: Unary) -> Value:
    value = scope.render(expr.operand)
    if expr.op == "not":
        return scope.call("logical_not", BOOL, value)
    if value.dtype == FLOAT:
        return scope.call("neg", FLOAT, value)
    if _literal(value):
        return Value(text=f"0 - {value.operand}", dtype=INT, loose=True)
    return scope.call("neg_i32", INT, value)


def _promoted(scope: Scope, left: Value, right: Value) -> tuple[Value, Value]:
    if FLOAT in (left.dtype, right.dtype):
        return scope.as_float(left), scope.as_float(right)
    return left, right


def _binary(scope: Scope, expr: Binary) -> Value:
    left, right = scope.render(expr.left), scope.render(expr.right)
    if expr.op == "/":
        left, right = scope.as_float(left), scope.as_float(right)
    left, right = _promoted(scope, left, right)
    if left.dtype == FLOAT and expr.op == "-":
        return scope.call("sub", FLOAT, left, right)
    if left.dtype != FLOAT and not (_literal(left) and _literal(right)):
        return scope.call(_WRAPPING[expr.op], INT, left, right)
    return scope.arithmetic(expr.op, left, right)


def _literal(value: Value) -> bool:
    return value.text.lstrip("-").isdigit()


def _compare(scope: Scope, expr: Compare) -> Value:
    left, right = _promoted(scope, scope.render(expr.left), scope.render(expr.right))
    return scope.call(_COMPARE[expr.op], BOOL, left, right)


def _logical(scope: Scope, expr: Logical) -> Value:
    return scope.call(f"logical_{expr.op}", BOOL, scope.render(expr.left), scope.render(expr.right))


def _select(scope: Scope, expr: Select) -> Value:
    condition = scope.render(expr.condition)
    left, right = _promoted(scope, scope.render(expr.then), scope.render(expr.otherwise))
    helper = "select" if left.dtype == FLOAT else "select_i32"
    return scope.call(helper, left.dtype, condition, left, right)


def _call(scope: Scope, expr: Call) -> Value:
    args = [scope.render(arg) for arg in expr.args]
    if expr.function in ("abs", "min", "max") and all(arg.dtype != FLOAT for arg in args):
        return scope.call(_FLOAT_FUNCTIONS[expr.function] + "_i32", INT, *args)
    return scope.call(_FLOAT_FUNCTIONS[expr.function], FLOAT, *(scope.as_float(arg) for arg in args))


def _cast(scope: Scope, expr: Cast) -> Value:
    value = scope.render(expr.value)
    if expr.dtype == FLOAT:
        return scope.as_float(value)
    if expr.dtype == INT:
        return (
            scope.call("truncate", INT, value)
            if value.dtype == FLOAT
            else Value(text=value.text, dtype=INT, loose=value.loose)
        )
    if expr.dtype == BOOL:
        return (
            value
            if value.dtype == BOOL
            else scope.call("ne", BOOL, *_promoted(scope, value, Value(text="0", dtype=INT)))
        )
    return scope.call(f"round_{expr.dtype}", FLOAT, scope.as_float(value))


_RENDERERS: dict[type, Callable[..., Value]] = {
    Const: _const,
    Name: _name,
    Index: _index,
    Load: _load,
    Unary: _unary,
    Binary: _binary,
    Compare: _compare,
    Logical: _logical,
    Select: _select,
    Call: _call,
    Cast: _cast,
}

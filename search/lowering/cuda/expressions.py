"""Expressions as CUDA TileLang text: 16-bit elements have dtypes of their own here, and folds may forbid fma."""

from __future__ import annotations

from dataclasses import dataclass

from search.lowering.expressions import FLOAT, NARROW, Scope, Value
from search.program.ir import Expr

STORED = {"float32": "F32", "int32": "I32", "bool": "I32", "float16": "F16", "bfloat16": "BF16"}
"""The text's constant for a storage dtype (conditions are held as int32)."""


@dataclass(frozen=True, kw_only=True)
class CudaScope(Scope):
    """What names mean at one place of the text."""

    contracted: bool = True
    """False in a kernel with a strict fold: every product is rounded by itself."""

    def widened(self, stored: str, dtype: str) -> Value:
        """The value of an element whose storage reads ``stored``."""
        if dtype in NARROW:
            return Value(text=f"T.cast({stored}, F32)", dtype=FLOAT)
        return Value(text=stored, dtype=dtype)

    def narrowed(self, expr: Expr, dtype: str) -> Value:
        """The text of an expression as an element of that dtype is stored."""
        if dtype in NARROW:
            value = self.bound(self.render_float(expr))
            return Value(text=f"T.cast({value.text}, {STORED[dtype]})", dtype=dtype)
        return self.render_as(expr, dtype)

    def arithmetic(self, sign: str, left: Value, right: Value) -> Value:
        """An operator of two float32 values, or of two literals."""
        if sign == "*" and not self.contracted and left.dtype == FLOAT:
            return self.call("mul", FLOAT, left, right)
        return super().arithmetic(sign, left, right)

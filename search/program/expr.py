"""Expressions as text: ``parse_expression`` and ``format_expression``, inverse to each other.

The grammar is Python's for the operators it has, and nothing else::

    or < and < not < (< <= > >= == !=, never chained) < + - < * / < unary -
    functions of ``ir.FUNCTIONS``, select(condition, then, otherwise), cast(value, dtype), index(axis)
    numbers, inf, true, false, names, tensor[subscript, ...]

A tensor's bare name is its element at the natural subscripts. With brackets there is one subscript per column axis
(the row is implied), or one per axis. A subscript is a sum of axes, dims and integer params with integer factors.
Nothing is ever evaluated, and text of any content gives an expression or ``InvalidInput``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from search.errors import InvalidInput, Problem
from search.program.format import format_expression
from search.program.grammar import (
    AND,
    CALLS,
    COMPARE,
    FLOAT32_MAX,
    INT32_MAX,
    NOT,
    OR,
    PRECEDENCE,
    RESERVED,
    UNARY,
    Scope,
    program_scope,
)
from search.program.ir import (
    DTYPE_BYTES,
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
from search.program.limits import DEFAULT_LIMITS, Limits
from search.program.report import character_words, shown
from search.program.walk import affine, children, natural

__all__ = ["Scope", "format_expression", "parse_expression", "program_scope"]

_NOT_HERE = {
    "**": "there are no powers; write x * x, or exp(y * log(x))",
    "//": "nothing is divided to an integer; declare the quotient as a dim of its own",
    "%": "there are no remainders",
    "=": "a statement's own name is what it defines; compare with ==",
    "'": "text is no value",
    '"': "text is no value",
    ".": "nothing has attributes; a number is written 0.5",
    "&": "conditions are joined with 'and'",
    "|": "conditions are joined with 'or'",
    "!": "conditions are negated with 'not'",
    "?": "choose with select(condition, then, otherwise)",
}
"""What people write that is no part of the grammar → what to write."""
_CONSTANT = ""
"""Stands for the constant part among the names of a subscript."""

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))"
    r"|(?P<name>[A-Za-z][A-Za-z0-9_]*)"
    r"|(?P<op>\*\*|//|<=|>=|==|!=|[-+*/<>()\[\],])"
)


def parse_expression(text: str, scope: Scope, *, pointer: str, limits: Limits = DEFAULT_LIMITS) -> Expr:
    """The expression that ``text`` writes; InvalidInput (one problem, at ``pointer``) for everything else."""
    try:
        if len(text) > limits.expression_chars:
            raise _RefusedError(
                f"the text has {len(text)} characters; split it with let and tile", f"<= {limits.expression_chars}"
            )
        parser = _Parser(text, scope, limits)
        expr = parser.whole()
        _check_size(expr, limits)
    except _RefusedError as refused:
        problem = Problem(field=pointer, value=shown(text), message=refused.message, allowed=refused.allowed)
        raise InvalidInput([problem]) from None
    return expr


# --- text to nodes ---------------------------------------------------------------------------------------------


class _RefusedError(Exception):
    def __init__(self, message: str, allowed: Any = None) -> None:
        self.message = message
        self.allowed = allowed
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class _Token:
    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        if match.lastgroup != "space":
            tokens.append(_Token(kind=str(match.lastgroup), text=match.group(), position=position))
        position = match.end()
    tokens.append(_Token(kind="end", text="the end", position=len(text)))
    return tokens


def _unreadable(text: str, position: int) -> _RefusedError:
    character = text[position]
    message = f"cannot read {shown(text[position : position + 12])!r} at position {position}"
    if not character.isascii():
        message += f": {character_words(character)}, and expressions are ASCII"
    elif character in _NOT_HERE:
        message += f": {_NOT_HERE[character]}"
    return _RefusedError(message, "numbers, names, + - * / < <= > >= == != and or not ( ) [ ] ,")


class _Parser:
    """Precedence climbing; ``level`` bounds the recursion before the tree's own depth is known."""

    def __init__(self, text: str, scope: Scope, limits: Limits) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.scope = scope
        self.limits = limits
        self.level = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.token
        self.at += 1
        return token

    def refusal(self, token: _Token, message: str, allowed: Any = None) -> _RefusedError:
        return _RefusedError(f"{message} at position {token.position}, at {token.text[:40]!r}", allowed)

    def expect(self, text: str, after: str) -> None:
        if self.token.kind != "op" or self.token.text != text:
            raise self.refusal(self.token, f"expected {text!r} {after}", text)
        self.at += 1

    def sees(self, text: str) -> bool:
        return self.token.kind == "op" and self.token.text == text

    def whole(self) -> Expr:
        expr = self.expression(0)
        if self.token.text in _NOT_HERE:
            raise self.refusal(self.token, f"{self.token.text!r} is no operator: {_NOT_HERE[self.token.text]}")
        if self.token.text == "if":
            raise self.refusal(self.token, "choose with select(condition, then, otherwise)")
        if self.token.kind != "end":
            raise self.refusal(self.token, "expected an operator or the end", [*PRECEDENCE])
        return expr

    def expression(self, least: int) -> Expr:
        self.level += 1
        if self.level > self.limits.expression_depth:
            raise self.refusal(self.token, "nested too deep", f"<= {self.limits.expression_depth} levels")
        left: Expr
        if self.token.kind == "name" and self.token.text == "not":
            if least > NOT:
                raise self.refusal(self.token, "put 'not ...' in parentheses here")
            self.at += 1
            left = Unary(op="not", operand=self.expression(NOT))
        else:
            left = self.operand()
        compared = False
        while True:
            operator = self.token
            precedence = PRECEDENCE.get(operator.text) if operator.kind in ("op", "name") else None
            if precedence is None or precedence < least:
                break
            if precedence == COMPARE and compared:
                raise self.refusal(operator, "comparisons are not chained: write 'a < b and b < c'")
            self.at += 1
            right = self.expression(precedence + 1)
            compared = precedence == COMPARE
            if compared:
                left = Compare(op=operator.text, left=left, right=right)
            elif precedence in (AND, OR):
                left = Logical(op=operator.text, left=left, right=right)
            else:
                left = Binary(op=operator.text, left=left, right=right)
        self.level -= 1
        return left

    def operand(self) -> Expr:
        token = self.take()
        if token.kind == "number":
            return Const(value=self.number(token, sign=1))
        if token.kind == "name":
            return self.named(token)
        if token.text == "(" and token.kind == "op":
            inner = self.expression(0)
            self.expect(")", "to close the bracket")
            return inner
        if token.text == "-" and token.kind == "op":
            # a minus directly before a literal belongs to the literal; -(1) keeps the operation
            if self.token.kind == "number":
                return Const(value=self.number(self.take(), sign=-1))
            if self.token.kind == "name" and self.token.text == "inf":
                self.at += 1
                return Const(value=float("-inf"))
            return Unary(op="-", operand=self.expression(UNARY))
        raise self.refusal(token, "expected a number, a name, a function, '-' or '('", [*CALLS])

    def number(self, token: _Token, sign: int) -> float | int:
        text = token.text
        if text.isdigit():
            # the length is looked at first: int() of thousands of digits is slow, and refused by Python itself
            if len(text.lstrip("0")) > 10 or not -INT32_MAX - 1 <= sign * int(text) <= INT32_MAX:
                raise self.refusal(token, "the integer does not fit in int32; write a float", "-2147483648..2147483647")
            return sign * int(text)
        value = sign * float(text)
        if abs(value) > FLOAT32_MAX:
            raise self.refusal(
                token, "the number does not fit in float32; infinity is written inf", f"<= {FLOAT32_MAX}"
            )
        return value

    def named(self, token: _Token) -> Expr:
        name = token.text
        if self.sees("("):
            return self.call(token)
        if self.sees("["):
            return self.subscripted(token)
        if name == "inf":
            return Const(value=float("inf"))
        if name in ("true", "false"):
            return Const(value=name == "true")
        if name in CALLS:
            raise self.refusal(token, f"{name} is a function: write {name}(...)", f"{name}(...)")
        if name in RESERVED:
            raise self.refusal(token, f"{name!r} is a reserved word")
        if name in self.scope.tensors:
            return Load(tensor=name, index=tuple(natural(axis) for axis in self.scope.tensors[name]))
        return Name(name=name)

    def call(self, token: _Token) -> Expr:
        name = token.text
        if name not in CALLS:
            raise self.refusal(token, f"{name!r} is not a function", [*CALLS])
        self.at += 1
        if name == "index":
            return Index(axis=self.word(self.scope.axes, "index(axis) takes one axis"))
        args = [self.expression(0)]
        while self.sees(","):
            self.at += 1
            if name == "cast" and len(args) == 1:
                dtype = self.word(tuple(DTYPE_BYTES), "cast(value, dtype) takes a dtype")
                return Cast(dtype=dtype, value=args[0])
            args.append(self.expression(0))
        self.expect(")", f"to close {name}(...)")
        wanted = {"select": 3, "cast": 2, **FUNCTIONS}[name]
        if len(args) != wanted:
            raise self.refusal(token, f"{name} takes {wanted} argument(s), not {len(args)}", wanted)
        if name == "select":
            return Select(condition=args[0], then=args[1], otherwise=args[2])
        return Call(function=name, args=tuple(args))

    def word(self, allowed: tuple[str, ...], message: str) -> str:
        """A name that is not an expression: an axis, a dtype. Closes the call's bracket."""
        token = self.take()
        if token.kind != "name" or token.text not in allowed:
            raise self.refusal(token, message, list(allowed))
        self.expect(")", f"after {token.text}")
        return token.text

    def subscripted(self, token: _Token) -> Expr:
        axes = self.scope.tensors.get(token.text)
        if axes is None:
            raise self.refusal(
                token, f"{token.text!r} is not a tensor, so it has no elements", sorted(self.scope.tensors)
            )
        self.at += 1
        index = [self.subscript()]
        while self.sees(","):
            self.at += 1
            index.append(self.subscript())
        if self.token.text in _NOT_HERE:
            raise self.refusal(self.token, f"{self.token.text!r} is no operator: {_NOT_HERE[self.token.text]}")
        self.expect("]", "to close the subscripts")
        row = self.scope.row_axis
        if row in axes and len(index) == len(axes) - 1:
            index.insert(axes.index(row), natural(row))
        if len(index) != len(axes):
            raise self.refusal(
                token, f"{token.text} has axes {', '.join(axes)}: {len(index)} subscript(s) do not fit", list(axes)
            )
        return Load(tensor=token.text, index=tuple(index))

    def subscript(self) -> Affine:
        start = self.token
        expr = self.expression(0)
        _check_size(expr, self.limits)
        sums = self.linear(expr, start)
        if any(abs(factor) > INT32_MAX for factor in sums.values()):
            raise self.refusal(start, "a factor of the subscript does not fit in int32")
        constant = sums.pop(_CONSTANT, 0)
        return affine(sums, constant)

    def linear(self, expr: Expr, start: _Token) -> dict[str, int]:
        """Name to factor, the constant under ``_CONSTANT``."""
        match expr:
            case Const(value=value) if type(value) is int:
                return {_CONSTANT: value}
            case Name(name=name) if name in self.scope.linear:
                return {name: 1}
            case Unary(op="-"):
                return {name: -factor for name, factor in self.linear(expr.operand, start).items()}
            case Binary(op="+" | "-"):
                sign = 1 if expr.op == "+" else -1
                sums = self.linear(expr.left, start)
                for name, factor in self.linear(expr.right, start).items():
                    sums[name] = sums.get(name, 0) + sign * factor
                return sums
            case Binary(op="/"):
                message = "a subscript is not divided; declare the quotient of extents as a dim of its own"
                raise self.refusal(start, message, [*self.scope.axes, *self.scope.dims, *self.scope.params])
            case Binary(op="*"):
                left, right = self.linear(expr.left, start), self.linear(expr.right, start)
                if left.keys() <= {_CONSTANT}:
                    left, right = right, left
                if right.keys() <= {_CONSTANT}:
                    return {name: factor * right.get(_CONSTANT, 0) for name, factor in left.items()}
            case _:
                pass
        message = "a subscript is a sum of axes, dims, integer params and loop indices, each times an integer constant"
        raise self.refusal(start, message, list(self.scope.linear))


def _check_size(expr: Expr, limits: Limits) -> None:
    nodes = 0
    pending = [(expr, 1)]
    while pending:
        node, depth = pending.pop()
        nodes += 1
        if depth > limits.expression_depth:
            raise _RefusedError(
                "the expression is too deep (a sum of n terms is n levels); split it with let and tile",
                f"<= {limits.expression_depth} levels",
            )
        pending.extend((part, depth + 1) for part in children(node))
    if nodes > limits.expression_nodes:
        raise _RefusedError(
            f"the expression has {nodes} nodes; split it with let and tile", f"<= {limits.expression_nodes}"
        )

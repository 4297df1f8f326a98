"""Walking programs: parts of an expression, expressions of a statement, and where each stands in the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from search.program.ir import (
    Affine,
    Binary,
    Call,
    Cast,
    Compare,
    Expr,
    Finalize,
    Let,
    Load,
    Logical,
    Loop,
    Name,
    Reduce,
    Reducer,
    Select,
    StageBoundary,
    Statement,
    Store,
    Tile,
    Unary,
    Update,
)

KINDS: dict[type[Statement], str] = {
    Reducer: "reducer",
    Update: "update",
    Finalize: "finalize",
    Reduce: "reduce",
    Let: "let",
    Tile: "tile",
    Store: "store",
    StageBoundary: "stage",
    Loop: "loop",
}
"""Statement class to its key in the document."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An expression of a statement, the axes over which it is evaluated, and its JSON pointer."""

    pointer: str
    over: tuple[str, ...]
    expr: Expr


def natural(axis: str) -> Affine:
    """The subscript that stands where the iteration stands."""
    return Affine(terms=((axis, 1),))


def affine(terms: Mapping[str, int], constant: int = 0) -> Affine:
    """The canonical subscript: terms sorted by name, none of them zero."""
    return Affine(terms=tuple(sorted((name, c) for name, c in terms.items() if c != 0)), constant=constant)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, in order."""
    match expr:
        case Unary():
            return (expr.operand,)
        case Binary() | Compare() | Logical():
            return (expr.left, expr.right)
        case Select():
            return (expr.condition, expr.then, expr.otherwise)
        case Call():
            return expr.args
        case Cast():
            return (expr.value,)
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, parents first, left to right. Does not recurse."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))


def substituted(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression with row scalars and tiles replaced by expressions (in subscripts by names)."""
    match expr:
        case Name():
            return values.get(expr.name, expr)
        case Unary():
            return replace(expr, operand=substituted(expr.operand, values))
        case Binary() | Compare() | Logical():
            return replace(expr, left=substituted(expr.left, values), right=substituted(expr.right, values))
        case Select():
            return Select(
                condition=substituted(expr.condition, values),
                then=substituted(expr.then, values),
                otherwise=substituted(expr.otherwise, values),
            )
        case Call():
            return replace(expr, args=tuple(substituted(arg, values) for arg in expr.args))
        case Cast():
            return replace(expr, value=substituted(expr.value, values))
        case Load():
            moved = {old: new.name for old, new in values.items() if isinstance(new, Name)}
            return replace(
                expr,
                index=tuple(affine({moved.get(n, n): factor for n, factor in s.terms}, s.constant) for s in expr.index),
            )
        case _:
            return expr


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with row scalars, tiles and loop indices renamed."""
    return substituted(expr, {old: Name(name=new) for old, new in names.items()})


def statements(body: tuple[Statement, ...], pointer: str = "/body") -> Iterator[tuple[str, Statement]]:
    """Every statement with its pointer (``/body/3/update``), loop bodies included, in order."""
    for position, statement in enumerate(body):
        here = f"{pointer}/{position}/{KINDS[type(statement)]}"
        yield here, statement
        if isinstance(statement, Loop):
            yield from statements(statement.body, here + "/body")


def placed(statement: Statement, pointer: str) -> tuple[Placed, ...]:
    """The statement's own expressions (not those of a loop's body)."""
    match statement:
        case Reducer(seed=seed) if seed is not None:
            return (Placed(pointer=pointer + "/seed", over=(), expr=seed),)
        case Update():
            parts = [
                Placed(pointer=f"{pointer}/index/{position}", over=statement.over, expr=index)
                for position, index in enumerate(statement.index)
            ]
            parts.append(Placed(pointer=pointer + "/value", over=statement.over, expr=statement.value))
            if statement.where is not None:
                parts.append(Placed(pointer=pointer + "/where", over=statement.over, expr=statement.where))
            return tuple(parts)
        case Reduce() | Tile() | Store():
            return (Placed(pointer=pointer + "/value", over=statement.over, expr=statement.value),)
        case Let():
            return (Placed(pointer=pointer + "/value", over=(), expr=statement.value),)
        case _:
            return ()


def loads(expr: Expr) -> tuple[Load, ...]:
    """The tensor loads of an expression, in order, repeated ones included."""
    return tuple(node for node in walk(expr) if isinstance(node, Load))


def defined(statement: Statement) -> tuple[str, ...]:
    """The local names that a statement introduces."""
    match statement:
        case Reducer() | Let() | Tile():
            return (statement.name,)
        case Finalize() | Reduce():
            return statement.results
        case Loop():
            return () if statement.index is None else (statement.index,)
        case _:
            return ()

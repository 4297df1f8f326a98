"""Alternative algorithms: programs rewritten to structured reductions that give the same values in fewer passes.

Matched by structure, on the desugared program, never by a kernel's name:

===========  ===========================================================================================================
``online``   max of v, then the sum of exp(v − peak) over the same points: one ``online_softmax``; the peak may be
             guarded, 0 where it is infinite
``welford``  sum of v, mean = sum / points, then the sum of (v − mean)² over the same points: one ``welford``
===========  ===========================================================================================================

Tiles and lets in between are seen through, and stay for whatever else reads them. The one-pass variance Σv² − (Σv)²/n
is none of them: at an offset of 1000 it has no digit left. Nothing is moved over a ``stage`` or a store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from search.program.desugar import desugar
from search.program.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Finalize,
    Let,
    Loop,
    Name,
    Program,
    ReduceOp,
    Reducer,
    Select,
    StageBoundary,
    Statement,
    Store,
    Tile,
    Update,
)
from search.program.walk import defined, placed, substituted, walk

AlgorithmWord = Literal["written", "online", "welford"]
ALGORITHMS: tuple[AlgorithmWord, ...] = ("written", "online", "welford")
WRITTEN: AlgorithmWord = "written"
LONGEST_INLINED = 256
"""Nodes of an expression with its tiles written out; what is longer matches nothing."""


@lru_cache(maxsize=64)
def algorithms(program: Program) -> tuple[AlgorithmWord, ...]:
    """The algorithms that a program can be computed by: as written, and those that match something in it."""
    return tuple(word for word in ALGORITHMS if word == WRITTEN or rewritten(program, word) is not None)


@lru_cache(maxsize=64)
def rewritten(program: Program, algorithm: AlgorithmWord) -> Program | None:
    """The desugared program with every match replaced; None when nothing matches. As written: the program itself."""
    if algorithm == WRITTEN:
        return program
    rewrite = _online if algorithm == "online" else _welford
    body, changed = desugar(program).body, False
    if any(isinstance(statement, Loop) for statement in body):
        # what a loop reads and updates is not followed
        return None
    while (made := rewrite(program, body)) is not None:
        body, changed = _without_unread_tiles(made), True
    return replace(program, body=body) if changed else None


@dataclass(frozen=True, kw_only=True)
class _Reduction:
    """A float32 reduction with one update, at the top level: where its statements stand."""

    opened: int
    updated: int
    finalized: int
    reducer: Reducer
    update: Update
    into: str


def _reductions(body: Sequence[Statement], op: ReduceOp) -> Iterator[_Reduction]:
    for opened, reducer in enumerate(body):
        if not isinstance(reducer, Reducer) or reducer.op != op or reducer.dtype != "float32":
            continue
        if reducer.shape or reducer.seed is not None or reducer.order != "any":
            continue
        updates = [at for at, s in enumerate(body) if isinstance(s, Update) and s.reducer == reducer.name]
        ends = [at for at, s in enumerate(body) if isinstance(s, Finalize) and s.reducer == reducer.name]
        if len(updates) != 1 or len(ends) != 1:
            continue
        update, end = body[updates[0]], body[ends[0]]
        assert isinstance(update, Update)
        assert isinstance(end, Finalize)
        if update.over and not update.index:
            yield _Reduction(
                opened=opened, updated=updates[0], finalized=ends[0], reducer=reducer, update=update, into=end.into
            )


def _online(program: Program, body: Sequence[Statement]) -> tuple[Statement, ...] | None:
    plain = _inliner(body)
    for peak in _reductions(body, "max"):
        value = plain(peak.update.value)
        for shift in (peak.into, *_guarded(body, peak.into)):
            term = Call(function="exp", args=(Binary(op="-", left=value, right=Name(name=shift)),))
            for total in _reductions(body, "sum"):
                if plain(total.update.value) != term or not _together(body, peak, total, plain):
                    continue
                if shift == peak.into:
                    return _joined(body, peak, total, "online_softmax", (peak.into, total.into))
                near = _fresh(program, body, f"{total.into[:48]}_near")
                # around an infinite peak the guarded sum is of exp(v) itself: nothing, or infinity
                infinite = Call(function="max", args=(Name(name=peak.into), Const(value=0.0)))
                whole = Select(condition=_is_infinite(peak.into), then=infinite, otherwise=Name(name=near))
                kept = {total.finalized: Let(name=total.into, value=whole)}
                return _joined(body, peak, total, "online_softmax", (peak.into, near), kept)
    return None


def _guarded(body: Sequence[Statement], peak: str) -> list[str]:
    """Lets that are the peak, but 0 where it is infinite: what a logsumexp subtracts."""
    guard = Select(condition=_is_infinite(peak), then=Const(value=0.0), otherwise=Name(name=peak))
    return [statement.name for statement in body if isinstance(statement, Let) and statement.value == guard]


def _is_infinite(name: str) -> Expr:
    return Compare(op="==", left=Call(function="abs", args=(Name(name=name),)), right=Const(value=math.inf))


def _welford(program: Program, body: Sequence[Statement]) -> tuple[Statement, ...] | None:
    plain = _inliner(body)
    for total in _reductions(body, "sum"):
        found = _mean(program, body, total)
        if found is None:
            continue
        at, mean = found
        away = Binary(op="-", left=plain(total.update.value), right=Name(name=mean.name))
        for squares in _reductions(body, "sum"):
            value = plain(squares.update.value)
            if value == Binary(op="*", left=away, right=away) and _together(body, total, squares, plain):
                names = (_fresh(program, body, f"{mean.name[:48]}_count"), mean.name, squares.into)
                return _joined(body, total, squares, "welford", names, {at: None})
    return None


def _mean(program: Program, body: Sequence[Statement], total: _Reduction) -> tuple[int, Let] | None:
    """The let that divides a sum by the number of its points, if nothing else reads the sum."""
    if total.update.where is not None:
        return None
    readers = [at for at, s in enumerate(body) if total.into in _names(s)]
    if len(readers) != 1 or not isinstance(let := body[readers[0]], Let):
        return None
    match let.value:
        case Binary(op="/", left=Name(name=name), right=points) if name == total.into:
            extents = sorted(program.axis(axis).dim for axis in total.update.over)
            return (readers[0], let) if _factors(points) == extents else None
        case _:
            return None


def _factors(points: Expr) -> list[str] | None:
    """The names of a product of names, sorted; None for anything else."""
    match points:
        case Name():
            return [points.name]
        case Cast(dtype="float32"):
            return _factors(points.value)
        case Binary(op="*"):
            left, right = _factors(points.left), _factors(points.right)
            return None if left is None or right is None else sorted(left + right)
        case _:
            return None


def _together(body: Sequence[Statement], first: _Reduction, second: _Reduction, plain: Callable[[Expr], Expr]) -> bool:
    """Whether the second reduction may be computed where the first one is."""
    if first.finalized >= second.updated or first.update.over != second.update.over:
        return False
    conditions = [None if r.update.where is None else plain(r.update.where) for r in (first, second)]
    between = body[first.updated : second.updated]
    return conditions[0] == conditions[1] and not any(isinstance(s, Store | StageBoundary) for s in between)


def _joined(
    body: Sequence[Statement],
    first: _Reduction,
    second: _Reduction,
    op: ReduceOp,
    results: tuple[str, ...],
    instead: Mapping[int, Statement | None] = MappingProxyType({}),
) -> tuple[Statement, ...]:
    """The body with the first reduction turned into the structured one and the second one gone.

    ``instead`` says what stands in place of further statements (None: nothing).
    """
    out: list[Statement | None] = list(body)
    out[first.opened] = replace(first.reducer, op=op)
    out[first.finalized] = Finalize(reducer=first.reducer.name, into=results[0], rest=results[1:])
    for at in (second.opened, second.updated, second.finalized):
        out[at] = None
    for at, statement in instead.items():
        out[at] = statement
    return tuple(statement for statement in out if statement is not None)


def _inliner(body: Sequence[Statement]) -> Callable[[Expr], Expr]:
    """Expressions with every tile replaced by what it holds, as far as that stays short."""
    held: dict[str, Expr] = {}

    def plain(expr: Expr) -> Expr:
        # a chain of tiles that each read the last one twice doubles with every link: size it before it is made
        nodes = [node.name if isinstance(node, Name) else "" for node in walk(expr)]
        size = sum(sizes.get(name, 1) for name in nodes)
        return substituted(expr, held) if size <= LONGEST_INLINED else expr

    sizes: dict[str, int] = {}
    for statement in body:
        if isinstance(statement, Tile):
            held[statement.name] = made = plain(statement.value)
            sizes[statement.name] = sum(1 for _ in walk(made))
    return plain


def _without_unread_tiles(body: Sequence[Statement]) -> tuple[Statement, ...]:
    kept = list(body)
    while True:
        read = {name for statement in kept for name in _names(statement)}
        still = [s for s in kept if not isinstance(s, Tile) or s.name in read]
        if len(still) == len(kept):
            return tuple(kept)
        kept = still


def _names(statement: Statement) -> set[str]:
    """The names that a statement's own expressions read."""
    return {node.name for part in placed(statement, "") for node in walk(part.expr) if isinstance(node, Name)}


def _fresh(program: Program, body: Sequence[Statement], wanted: str) -> str:
    taken = {*program.dims, *(p.name for p in program.params), *(a.name for a in program.axes)}
    taken |= {tensor.name for tensor in program.tensors} | {name for s in body for name in defined(s)}
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}{number}", number + 1
    return name

"""Structured reductions in numpy: their direct definitions on whole parts, and their monoids' expressions evaluated.

Child side and tests only. A state is one array per component, in the monoid's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from search.program.grammar import INT32_MAX
from search.program.ir import Binary, Call, Compare, Const, Expr, Logical, Name, ReduceOp, Select, Unary
from search.program.monoids import (
    FIRST,
    HELD,
    MONOIDS,
    NUMBER,
    OTHER,
    PLACE,
    SECOND,
    VALUE,
    Expressions,
    Monoid,
)
from search.program.numpy_ops import ARITHMETIC, COMPARISONS

Array: TypeAlias = npt.NDArray[Any]
State: TypeAlias = tuple[Array, ...]

_UFUNCS: Mapping[str, np.ufunc] = {
    **ARITHMETIC,
    **COMPARISONS,
    "and": np.logical_and,
    "or": np.logical_or,
    "max": np.maximum,
    "abs": np.absolute,
    "exp": np.exp,
}


def empty(op: ReduceOp, shape: tuple[int, ...], real: npt.DTypeLike) -> State:
    """The state of parts without elements."""
    return tuple(
        np.full(shape, component.identity, dtype=np.int32 if component.dtype == "int32" else real)
        for component in MONOIDS[op].components
    )


def direct(
    op: ReduceOp,
    value: Array,
    where: Array | None,
    axes: Sequence[int],
    *,
    fold: bool = False,
    shuffle: np.random.Generator | None = None,
) -> State:
    """The state of the parts along ``axes`` (kept, with extent 1) by the op's definition.

    ``value`` is broadcast already, ``where`` says which elements contribute (None: all). An element's place is its
    index in the order of ``axes``, the last one fastest. ``fold`` adds in that order, one after the other; ``shuffle``
    in a random one (not for ``argmax``).
    """
    held = np.ones(value.shape, dtype=bool) if where is None else np.broadcast_to(where, value.shape)
    places, real = tuple(axes), value.dtype.type
    if shuffle is not None:
        fold = True
        for place in places:
            order = shuffle.permutation(value.shape[place])
            value, held = value.take(order, axis=place), held.take(order, axis=place)
    if op == "welford":
        count = np.sum(held, axis=places, keepdims=True).astype(value.dtype)
        some = np.maximum(count, real(1))
        mean = _sum(np.where(held, value, real(0)), places, fold) / some
        away = np.where(held, value - mean, real(0))
        return count, mean, _sum(away * away, places, fold)
    peak = np.max(np.where(held, value, real(-np.inf)), axis=places, keepdims=True)
    if op == "online_softmax":
        return peak, _sum(np.where(held, np.exp(value - peak), real(0)), places, fold)
    best = held & np.where(np.isnan(peak), np.isnan(value), value == peak)
    index = np.min(np.where(best, _index(value.shape, places), INT32_MAX), axis=places, keepdims=True)
    return peak, index.astype(np.int32)


def _sum(value: Array, places: tuple[int, ...], fold: bool) -> Array:
    total = np.sum(value, axis=places, keepdims=True)
    if not fold or not places:
        return np.asarray(total)
    last = range(value.ndim - len(places), value.ndim)
    kept = [extent for place, extent in enumerate(value.shape) if place not in places]
    line = np.moveaxis(value, places, last).reshape(*kept, -1)
    return np.asarray(np.add.accumulate(line, axis=-1)[..., -1].reshape(total.shape))


def _index(shape: tuple[int, ...], places: tuple[int, ...]) -> Array:
    out = np.zeros((1,) * len(shape), dtype=np.int64)
    for place in places:
        line = [1] * len(shape)
        line[place] = shape[place]
        out = out * shape[place] + np.arange(shape[place]).reshape(line)
    return out


def combined(op: ReduceOp, held: State, other: State) -> State:
    """The state of two parts together."""
    monoid = MONOIDS[op]
    return _states(monoid, monoid.combine, {**_named(monoid, HELD, held), **_named(monoid, OTHER, other)})


def absorbed(op: ReduceOp, held: State, value: Array, place: Array) -> State:
    """The state with one more element."""
    monoid = MONOIDS[op]
    return _states(monoid, monoid.absorb, {**_named(monoid, HELD, held), VALUE: value, PLACE: place})


def gathered(op: ReduceOp, held: State, values: Sequence[Array]) -> State:
    """The state with several more elements. KeyError for an op that has no such form."""
    monoid = MONOIDS[op]
    gather = monoid.gather
    if gather is None:
        raise KeyError(op)
    names = {**_named(monoid, HELD, held), FIRST: np.add.reduce(values), NUMBER: np.asarray(float(len(values)))}
    for name, expr in gather.frame:
        names[name] = _value(expr, names)
    names[SECOND] = np.add.reduce([_value(gather.term, {**names, VALUE: value}) for value in values])
    return _states(monoid, gather.merge, names)


def _named(monoid: Monoid, prefix: str, state: State) -> dict[str, Array]:
    return {f"{prefix}_{part.name}": array for part, array in zip(monoid.components, state, strict=True)}


def _states(monoid: Monoid, expressions: Expressions, names: dict[str, Array]) -> State:
    for name, expr in expressions:
        names[name] = _value(expr, names)
    return tuple(names[part.name].astype(names[f"{HELD}_{part.name}"].dtype, copy=False) for part in monoid.components)


def _value(expr: Expr, names: Mapping[str, Array]) -> Array:
    """The nodes that monoids are written with."""
    match expr:
        case Const():
            # a Python number takes the precision of what it meets
            return expr.value  # type: ignore[return-value]
        case Name():
            return names[expr.name]
        case Unary(op="-"):
            return -_value(expr.operand, names)
        case Binary() | Compare() | Logical():
            return np.asarray(_UFUNCS[expr.op](_value(expr.left, names), _value(expr.right, names)))
        case Select():
            condition = _value(expr.condition, names)
            return np.where(condition, _value(expr.then, names), _value(expr.otherwise, names))
        case Call():
            return np.asarray(_UFUNCS[expr.function](*(_value(arg, names) for arg in expr.args)))
        case _:
            raise TypeError(f"no monoid is written with {type(expr).__name__}")

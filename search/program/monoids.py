"""Structured monoids: reductions whose partials hold several values. Each is stated once, here, as expressions.

The state of a part is what the direct definition gives for that part, NaN and infinities included:

==================  ==============================================================================================
``online_softmax``  ``peak`` = max(x), ``total`` = Σ exp(x − peak)
``welford``         ``count``, ``mean`` = Σ x / count, ``squares`` = Σ (x − mean)²
``argmax``          ``value`` = max(x), ``index`` = the smallest index of it; the first NaN wins
==================  ==============================================================================================

``combine`` gives the state of two parts from theirs, so any split, any tree and empty parts give the same (but for
rounding). ``absorb`` is ``combine`` with the part {x}, and ``gather`` with a part of n elements, both written for less
work. The oracle has the direct definitions
(``direct.py``), the property tests hold the two together, and the lowerings emit these expressions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from search.program.expr import parse_expression
from search.program.grammar import INT32_MAX, Scope
from search.program.ir import STRUCTURED_OPS, DType, Expr, ReduceOp

HELD, OTHER, VALUE, PLACE = "a", "b", "x", "at"
FIRST, SECOND, NUMBER = "first", "second", "n"
"""In the expressions: ``a_<component>`` is of the state that is held, ``b_<component>`` of the one that joins it, ``x``
is a contribution and ``at`` its place in the order of contributions."""

Expressions: TypeAlias = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, kw_only=True)
class Component:
    """One value of the state."""

    name: str
    dtype: DType
    identity: float | int
    """Of a part without elements."""


@dataclass(frozen=True, kw_only=True)
class Gather:
    """How a state takes in n elements x at once, for one division instead of n.

    ``first`` is the sum of all x; ``frame`` is evaluated once, from the state, ``first`` and ``n``; ``second`` is the
    sum of ``term`` over all x; ``merge`` makes the new state of all these.
    """

    frame: Expressions
    term: Expr
    merge: Expressions


@dataclass(frozen=True, kw_only=True)
class Monoid:
    """A structured op. ``absorb`` and ``combine`` are evaluated in order: each name is a component's new value, or a
    value that later expressions of the list read."""

    op: ReduceOp
    components: tuple[Component, ...]
    absorb: Expressions
    combine: Expressions
    gather: Gather | None = None


_ARGMAX = {
    "wins": "{x} > a_value or ({x} != {x} and a_value == a_value)"
    " or (({x} == a_value or ({x} != {x} and a_value != a_value)) and {at} < a_index)",
    "value": "select(wins, {x}, a_value)",
    "index": "select(wins, {at}, a_index)",
}


def _monoid(
    op: ReduceOp,
    components: tuple[Component, ...],
    absorb: Mapping[str, str],
    combine: Mapping[str, str],
    gather: Gather | None = None,
) -> Monoid:
    return Monoid(op=op, components=components, absorb=_parsed(absorb), combine=_parsed(combine), gather=gather)


def _gather(*, frame: Mapping[str, str], term: str, merge: Mapping[str, str]) -> Gather:
    ((_, parsed),) = _parsed({"term": term})
    return Gather(frame=_parsed(frame), term=parsed, merge=_parsed(merge))


def _parsed(texts: Mapping[str, str]) -> Expressions:
    return tuple((name, parse_expression(text, Scope(tensors={}), pointer="")) for name, text in texts.items())


MONOIDS: dict[ReduceOp, Monoid] = {
    monoid.op: monoid
    for monoid in (
        _monoid(
            "online_softmax",
            (
                Component(name="peak", dtype="float32", identity=-math.inf),
                Component(name="total", dtype="float32", identity=0.0),
            ),
            # One exp per element, of minus its distance from the old peak; to take in several for one rescaling was
            # measured to be slower. x - x + 1 is exp(x - x): 1, or NaN where x is infinite. What an old peak of -inf
            # holds vanishes beside any larger element.
            absorb={
                "near": "exp(-abs(x - a_peak))",
                "kept": "select(a_peak == -inf, 0.0, a_total * near)",
                "total": "select(x > a_peak, kept + (x - x + 1.0), a_total + near)",
                "peak": "max(a_peak, x)",
            },
            combine={
                "peak": "max(a_peak, b_peak)",
                "left": "select(a_peak == peak, a_total, select(a_peak == -inf, 0.0, a_total * exp(a_peak - peak)))",
                "right": "select(b_peak == peak, b_total, select(b_peak == -inf, 0.0, b_total * exp(b_peak - peak)))",
                "total": "left + right",
            },
        ),
        _monoid(
            "welford",
            (
                Component(name="count", dtype="float32", identity=0.0),
                Component(name="mean", dtype="float32", identity=0.0),
                Component(name="squares", dtype="float32", identity=0.0),
            ),
            # The mean moves by its share of the difference, which loses nothing at a large offset; where the
            # difference is not finite the weighted sum is what the direct mean gives.
            absorb={
                "count": "a_count + 1.0",
                "share": "1.0 / count",
                "delta": "x - a_mean",
                "mean": "select(delta - delta == 0.0, a_mean + delta * share, a_mean * (a_count * share) + x * share)",
                "squares": "a_squares + (x - x) + delta * (delta * (a_count * share))",
            },
            combine={
                "count": "a_count + b_count",
                "share": "b_count / max(count, 1.0)",
                "delta": "b_mean - a_mean",
                "mean": "select(delta - delta == 0.0, a_mean + delta * share,"
                " a_mean * (a_count / max(count, 1.0)) + b_mean * share)",
                "squares": "a_squares + b_squares + delta * (delta * (a_count * share))",
            },
            gather=_gather(
                frame={"middle": "first / n"},
                term="(x - middle) * (x - middle)",
                merge={
                    "count": "a_count + n",
                    "share": "n / count",
                    "delta": "middle - a_mean",
                    "mean": "select(delta - delta == 0.0, a_mean + delta * share,"
                    " a_mean * (a_count / count) + middle * share)",
                    "squares": "a_squares + second + delta * (delta * (a_count * share))",
                },
            ),
        ),
        _monoid(
            "argmax",
            (
                Component(name="value", dtype="float32", identity=-math.inf),
                Component(name="index", dtype="int32", identity=INT32_MAX),
            ),
            absorb={name: text.format(x="x", at="at") for name, text in _ARGMAX.items()},
            combine={name: text.format(x="b_value", at="b_index") for name, text in _ARGMAX.items()},
        ),
    )
}
assert tuple(MONOIDS) == STRUCTURED_OPS


def result_dtypes(op: ReduceOp, dtype: DType) -> tuple[DType, ...]:
    """The dtypes of what a reducer of this op and accumulator dtype delivers, one per result."""
    monoid = MONOIDS.get(op)
    return (dtype,) if monoid is None else tuple(component.dtype for component in monoid.components)

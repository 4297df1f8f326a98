"""Partials as text: the arrays that hold them, how an update joins one, how two become one.

A scalar op holds one array per reducer. A structured op holds one per component, and its absorb and combine are the
expressions of its monoid, evaluated into temporaries before any component is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from search.lowering import names
from search.lowering.expressions import IDENTITIES, Scope, Value
from search.lowering.indexing import join, product
from search.lowering.text import Text
from search.planning.schedule import Accumulate, ReducerState, RowUpdate
from search.program.ir import DType
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
    Gather,
    Monoid,
)


@dataclass(frozen=True, kw_only=True)
class PartialArray:
    """One array of partials."""

    text: str
    dtype: DType
    identity: str


def partial_arrays(state: ReducerState) -> tuple[PartialArray, ...]:
    """The arrays of a reducer, one per component; KeyError for an op and dtype that no identity is known of."""
    monoid = MONOIDS.get(state.op)
    if monoid is None:
        identity = IDENTITIES[state.op, state.dtype]
        return (PartialArray(text=names.partials(state.name), dtype=state.dtype, identity=identity),)
    return tuple(
        PartialArray(
            text=names.component(state.name, part.name),
            dtype=part.dtype,
            identity=f"f32({part.identity!r})" if part.dtype == "float32" else str(part.identity),
        )
        for part in monoid.components
    )


def absorb(text: Text, scope: Scope, state: ReducerState, op: Accumulate | RowUpdate, index: str, place: str) -> None:
    """Lines that join an update's value, where its condition holds, to the partial at ``index``.

    ``place`` is the text of the contribution's index among those of its statement.
    """
    monoid = MONOIDS.get(state.op)
    if monoid is None:
        (array,) = partial_arrays(state)
        held = Value(text=f"{array.text}[{index}]", dtype=state.dtype)
        value = scope.combine(state.op, held, scope.render_as(op.value, state.dtype))
        if op.where is not None:
            helper = "select" if state.dtype == "float32" else "select_i32"
            value = scope.call(helper, state.dtype, scope.render(op.where), value, held)
        text.line(f"{held.text} = {value.text}")
        return
    step = _StateStep(text, scope, state, monoid)
    values = step.held(HELD, index)
    values[VALUE] = step.temporary(VALUE, scope.render_as(op.value, "float32"))
    values[PLACE] = Value(text=place, dtype="int32")
    where = None if op.where is None else step.temporary("where", scope.render(op.where))
    step.write(index, monoid.absorb, values, where)


def gathers(state: ReducerState, op: Accumulate) -> bool:
    """Whether an update's contributions can be taken in several at a time."""
    monoid = MONOIDS.get(state.op)
    return monoid is not None and monoid.gather is not None and op.where is None


class Gathering:
    """Contributions of one lane that wait to join its partial together."""

    def __init__(self, text: Text, state: ReducerState) -> None:
        self.text, self.state, self.monoid = text, state, MONOIDS[state.op]
        self.values: list[Value] = []

    def add(self, scope: Scope, op: Accumulate) -> None:
        """Line that names an update's value."""
        step = _StateStep(self.text, scope, self.state, self.monoid)
        self.values.append(step.temporary(f"{VALUE}{len(self.values)}", scope.render_as(op.value, "float32")))

    def join(self, scope: Scope, index: str) -> None:
        """Lines that join what waits to the partial at ``index``."""
        gather = self.monoid.gather
        assert gather is not None
        _StateStep(self.text, scope, self.state, self.monoid).gather(gather, self.values, index)


def merge(text: Text, scope: Scope, state: ReducerState, first: str, second: str) -> None:
    """Lines that make the partial at ``first`` the combination of those at ``first`` and ``second``."""
    monoid = MONOIDS.get(state.op)
    if monoid is None:
        (array,) = partial_arrays(state)
        left = Value(text=f"{array.text}[{first}]", dtype=state.dtype)
        right = Value(text=f"{array.text}[{second}]", dtype=state.dtype)
        text.line(f"{left.text} = {scope.combine(state.op, left, right).text}")
        return
    step = _StateStep(text, scope, state, monoid)
    step.write(first, monoid.combine, step.held(HELD, first) | step.held(OTHER, second), None)


def array_element(scope: Scope, op: Accumulate | RowUpdate) -> str:
    """The flattened element of the array, kept inside it where only the condition does."""
    terms, below = [], prod(index.extent for index in op.index)
    for index in op.index:
        below //= index.extent
        value = scope.render_as(index.value, "int32")
        if index.clamped:
            last = Value(text=str(index.extent - 1), dtype="int32")
            value = scope.call("maximum_i32", "int32", value, Value(text="0", dtype="int32"))
            value = scope.call("minimum_i32", "int32", value, last)
        terms.append(product(f"({value.text})" if value.loose and below > 1 else value.text, below))
    return join(*terms)


class _StateStep:
    """Evaluates a monoid's expressions over partials."""

    def __init__(self, text: Text, scope: Scope, state: ReducerState, monoid: Monoid) -> None:
        self.text, self.scope, self.state, self.monoid = text, scope, state, monoid
        self.arrays = dict(zip((part.name for part in monoid.components), partial_arrays(state), strict=True))

    def held(self, prefix: str, index: str) -> dict[str, Value]:
        """The components of the partial at ``index``, read into temporaries."""
        out: dict[str, Value] = {}
        for name, array in self.arrays.items():
            text = names.temporary(self.state.name, f"{prefix}{name}")
            self.text.line(f"{text} = {array.text}[{index}]")
            out[f"{prefix}_{name}"] = Value(text=text, dtype=array.dtype)
        return out

    def gather(self, gather: Gather, values: Sequence[Value], index: str) -> None:
        """Both sums over the waiting values, then the new components."""
        known = self.held(HELD, index)
        known[FIRST] = self.temporary(FIRST, self._sum(values))
        known[NUMBER] = self.scope.constant(float(len(values)))
        self._evaluate(gather.frame, known)
        terms = []
        for place, value in enumerate(values):
            scope = replace(self.scope, names={**known, VALUE: value}, coordinates={})
            terms.append(self.temporary(f"term{place}", scope.render(gather.term)))
        known[SECOND] = self.temporary(SECOND, self._sum(terms))
        self.write(index, gather.merge, known, None)

    def _sum(self, values: Sequence[Value]) -> Value:
        """A tree over values, neighbours first."""
        halved = list(values)
        while len(halved) > 1:
            pairs = zip(halved[::2], halved[1::2], strict=False)
            last = halved[-1:] if len(halved) % 2 else []
            halved = [*(self.scope.combine("sum", left, right) for left, right in pairs), *last]
        return halved[0]

    def temporary(self, name: str, value: Value) -> Value:
        """A value that is computed once and named."""
        text = names.temporary(self.state.name, name)
        self.text.line(f"{text} = {self.scope.bound(value).text}")
        return Value(text=text, dtype=value.dtype)

    def write(self, index: str, expressions: Expressions, values: Mapping[str, Value], where: Value | None) -> None:
        """Evaluate the expressions in order, then store every component at ``index``."""
        known = dict(values)
        self._evaluate(expressions, known)
        for name, array in self.arrays.items():
            value = known[name]
            if where is not None:
                helper = "select" if array.dtype == "float32" else "select_i32"
                value = self.scope.call(helper, array.dtype, where, value, known[f"{HELD}_{name}"])
            self.text.line(f"{array.text}[{index}] = {value.text}")

    def _evaluate(self, expressions: Expressions, known: dict[str, Value]) -> None:
        """Name the value of each expression, which later ones may read."""
        scope = replace(self.scope, names=known, coordinates={})
        for name, expr in expressions:
            array = self.arrays.get(name)
            value = scope.render(expr) if array is None else scope.render_as(expr, array.dtype)
            known[name] = self.temporary(name, value)

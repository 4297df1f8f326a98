"""Partials as text: the arrays that hold them, how an update joins one, how two become one.

A scalar op holds one array per reducer. A structured op holds one per component, and its absorb and combine are the
expressions of its monoid, evaluated into temporaries before any component is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from search.lowering.cpu import names
from search.lowering.cpu.expressions import IDENTITIES, Scope, Value
from search.lowering.cpu.text import Text
from search.planning.schedule import Accumulate, ReducerState, RowUpdate
from search.program.ir import DType, Expr
from search.program.monoids import HELD, MONOIDS, OTHER, PLACE, VALUE, Monoid

Expressions = tuple[tuple[str, Expr], ...]


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

    def temporary(self, name: str, value: Value) -> Value:
        """A value that is computed once and named."""
        text = names.temporary(self.state.name, name)
        self.text.line(f"{text} = {self.scope.bound(value).text}")
        return Value(text=text, dtype=value.dtype)

    def write(self, index: str, expressions: Expressions, values: Mapping[str, Value], where: Value | None) -> None:
        """Evaluate the expressions in order, then store every component at ``index``."""
        known = dict(values)
        scope = replace(self.scope, names=known, coordinates={})
        for name, expr in expressions:
            array = self.arrays.get(name)
            value = scope.render(expr) if array is None else scope.render_as(expr, array.dtype)
            known[name] = self.temporary(name, value)
        for name, array in self.arrays.items():
            value = known[name]
            if where is not None:
                helper = "select" if array.dtype == "float32" else "select_i32"
                value = scope.call(helper, array.dtype, where, value, known[f"{HELD}_{name}"])
            self.text.line(f"{array.text}[{index}] = {value.text}")

"""Load/reduction fusion: when the first consumer of a cached input may read global memory itself.

The one admission function. The schedule builder calls it, and the lowerings emit what the schedule says, so what the
plan counts as fused is what the code does. The rules are those of the semantics page, "Fusion legality".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from search.outcome import Rejected
from search.program.case import Case
from search.program.desugar import desugar
from search.program.ir import Reducer, StageBoundary, Store, Tile, Update
from search.program.walk import loads, statements
from search.space.uses import Use, column_axes, own_element, statement_expressions, wide_axes

Rule: TypeAlias = Literal[
    "not_read",
    "cross_scope",
    "mismatched_index",
    "repeated_read",
    "strict_fold",
    "reducer_array",
    "non_unit_wrapper",
    "multi_use_intermediate",
    "not_a_reduction",
    "effect_between",
]

RULES: dict[Rule, str] = {
    "not_read": "no statement reads the input",
    "cross_scope": "the first use stands inside a loop, in another scope than the load",
    "mismatched_index": "the first reduction does not run over exactly the input's axes (axes of one point aside)",
    "repeated_read": "the first reduction must read each element exactly once",
    "strict_fold": "the first reduction is a strict left fold; only unordered reductions fuse",
    "reducer_array": "the first reduction fills an array of results; only a closed scalar reduction fuses",
    "non_unit_wrapper": "a tile of more than one element stands between the load and the reduction",
    "multi_use_intermediate": "a tile that is used more than once stands between the load and the reduction",
    "not_a_reduction": "the first operation that reads the elements is not a reduction",
    "effect_between": "a stage, or a write to a buffer that may alias the input, comes before the first reduction",
}


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The load may be fused."""

    tensor: str
    site: int
    """The statement whose traversal reads global memory."""
    later_consumers: tuple[int, ...]
    """Statements that read the snapshot afterwards; with none nothing is stored or allocated."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The load may not be fused, by which rule, at which statement of the desugared body."""

    tensor: str
    rule: Rule
    statement: int | None

    def rejection(self) -> Rejected:
        """The candidate's rejection."""
        detail: dict[str, Any] = {
            "tensor": self.tensor,
            "rule": self.rule,
            "message": RULES[self.rule],
            "statement": self.statement,
        }
        return Rejected(stage="constraints", reason="fusion_illegal", detail=detail)


def admit(case: Case, uses: Sequence[Use], tensor: str) -> Admitted | Refused:
    """Whether the load of an input may be fused into its first consumer.

    The load stands at the first statement of the program that names the input; its first consumer is the first
    operation that reads the elements, found along single-use tiles of one element. ``uses`` are those of the
    desugared program in the candidate's view (tiles inlined under ``recompute``, so that a tile's reader reads).
    """
    readers = [use for use in uses if use.reads(tensor)]
    if not readers:
        return Refused(tensor=tensor, rule="not_read", statement=None)
    first = readers[0]
    rule = _read_rule(case, tensor, first)
    if rule is None:
        consumer, rule = _follow(case, uses, first)
        rule = rule or _consumer_rule(uses, consumer) or _effect_rule(case, tensor, consumer)
    if rule is not None:
        return Refused(tensor=tensor, rule=rule, statement=first.index)
    return Admitted(tensor=tensor, site=first.index, later_consumers=tuple(use.index for use in readers[1:]))


def _read_rule(case: Case, tensor: str, first: Use) -> Rule | None:
    """What is wrong with the way in which the first reader reads."""
    if first.loops:
        return "cross_scope"
    read = [load for load in first.loads if load.tensor == tensor]
    if not own_element(case, read[0]):
        return "mismatched_index"
    if len(read) > 1:
        return "repeated_read"
    columns = column_axes(case.program, case.program.tensor(tensor))
    # A complete reduction visits every element once in any order, so the order of its axes is free.
    if sorted(wide_axes(case, first.over)) != sorted(wide_axes(case, columns)):
        return "mismatched_index"
    return None


def _follow(case: Case, uses: Sequence[Use], first: Use) -> tuple[Use, Rule | None]:
    """The first operation that reads elements, along the single-use chain from the load, or why there is none."""
    use = first
    while isinstance(use.statement, Tile):
        tile = use.statement.name
        consumers = [other for other in uses if tile in other.tiles]
        if len(consumers) > 1:
            return use, "multi_use_intermediate"
        if not consumers:
            return use, "not_a_reduction"
        if case.domain_extent(use.over) > 1:
            return use, "non_unit_wrapper" if isinstance(consumers[0].statement, Update) else "not_a_reduction"
        use = consumers[0]
    return use, None


def _consumer_rule(uses: Sequence[Use], consumer: Use) -> Rule | None:
    """Why the first consumer is no closed, unordered, scalar reduction."""
    if consumer.loops:
        return "cross_scope"
    if not isinstance(consumer.statement, Update):
        return "not_a_reduction"
    name = consumer.statement.reducer
    reducer = next(u.statement for u in uses if isinstance(u.statement, Reducer) and u.statement.name == name)
    if reducer.shape:
        return "reducer_array"
    return "strict_fold" if reducer.order == "strict" else None


def _effect_rule(case: Case, tensor: str, consumer: Use) -> Rule | None:
    """Nothing moves across an effect: tensors may alias as declared, read-only or not.

    An input's value is that of the row's start, so an aliasing write counts wherever it stands before the consumer; a
    stage counts between the load and the consumer.
    """
    aliased = {other.name for other in case.program.tensors if other.aliases == tensor}
    loaded = False
    before = [statement for _, statement in statements(desugar(case.program).body)][: consumer.index]
    for statement in before:
        loaded = loaded or any(
            load.tensor == tensor for expr in statement_expressions(statement) for load in loads(expr)
        )
        if isinstance(statement, Store) and statement.tensor in aliased:
            return "effect_between"
        if isinstance(statement, StageBoundary) and loaded:
            return "effect_between"
    return None

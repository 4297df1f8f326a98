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
from search.program.ir import Load, Loop, Reducer, Store, Tile, Update
from search.space.uses import Use, column_axes, natural_index, wide_axes

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
    "effect_between": "a buffer that may alias the input is written before its first use",
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

    ``uses`` are those of the desugared program in the candidate's view (tiles inlined under ``recompute``).
    """
    readers = [use for use in uses if use.reads(tensor)]
    if not readers:
        return Refused(tensor=tensor, rule="not_read", statement=None)
    first = readers[0]
    rule = _effect_rule(case, uses, tensor, first) or _read_rule(case, tensor, first) or _chain_rule(case, uses, first)
    if rule is not None:
        return Refused(tensor=tensor, rule=rule, statement=first.index)
    return Admitted(tensor=tensor, site=first.index, later_consumers=tuple(use.index for use in readers[1:]))


def _effect_rule(case: Case, uses: Sequence[Use], tensor: str, first: Use) -> Rule | None:
    aliased = {other.name for other in case.program.tensors if other.aliases == tensor}
    for use in uses:
        if use.index < first.index and isinstance(use.statement, Store) and use.statement.tensor in aliased:
            return "effect_between"
    return None


def _read_rule(case: Case, tensor: str, first: Use) -> Rule | None:
    if isinstance(first.statement, Loop):
        return "cross_scope"
    declared = case.program.tensor(tensor)
    loads = [load for load in first.loads if load.tensor == tensor]
    if loads[0] != Load(tensor=tensor, index=natural_index(declared)):
        return "mismatched_index"
    if len(loads) > 1:
        return "repeated_read"
    columns = column_axes(case.program, declared)
    # A complete reduction visits every element once in any order, so the order of its axes is free.
    if sorted(wide_axes(case, first.over)) != sorted(wide_axes(case, columns)):
        return "mismatched_index"
    return None


def _chain_rule(case: Case, uses: Sequence[Use], first: Use) -> Rule | None:
    """Follow the single-use chain from the load to the first operation that reads elements."""
    use = first
    while isinstance(use.statement, Tile):
        tile = use.statement.name
        consumers = [other for other in uses if tile in other.tiles]
        if len(consumers) > 1:
            return "multi_use_intermediate"
        if not consumers:
            return "not_a_reduction"
        if case.domain_extent(use.over) > 1:
            return "non_unit_wrapper" if isinstance(consumers[0].statement, Update) else "not_a_reduction"
        use = consumers[0]
    if not isinstance(use.statement, Update):
        return "not_a_reduction"
    name = use.statement.reducer
    reducer = next(u.statement for u in uses if isinstance(u.statement, Reducer) and u.statement.name == name)
    if reducer.shape:
        return "reducer_array"
    return "strict_fold" if reducer.order == "strict" else None

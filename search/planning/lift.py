"""Lifting: expressions of statements become expressions over the values that ops made, under names of ours."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from search.program.ir import (
    Binary,
    Call,
    Cast,
    Compare,
    Expr,
    Load,
    Logical,
    Name,
    Program,
    Select,
    Unary,
)
from search.program.walk import defined, statements

Names: TypeAlias = dict[Load | str, str]
"""What stands for a load or a tile in the ops of one statement."""


def lifted(expr: Expr, names: Names) -> Expr:
    """The expression with every load and tile replaced by the name of the op that made it."""
    match expr:
        case Load():
            return Name(name=names[expr])
        case Name(name=name):
            return Name(name=names[name]) if name in names else expr
        case Unary():
            return replace(expr, operand=lifted(expr.operand, names))
        case Binary() | Compare() | Logical():
            return replace(expr, left=lifted(expr.left, names), right=lifted(expr.right, names))
        case Select():
            return Select(
                condition=lifted(expr.condition, names),
                then=lifted(expr.then, names),
                otherwise=lifted(expr.otherwise, names),
            )
        case Call():
            return replace(expr, args=tuple(lifted(arg, names) for arg in expr.args))
        case Cast():
            return replace(expr, value=lifted(expr.value, names))
        case _:
            return expr


class FreshNames:
    """Hands out names that neither the program nor an earlier call uses. Equal calls give equal names."""

    def __init__(self, program: Program) -> None:
        self._taken = {*program.dims, *(p.name for p in program.params), *(a.name for a in program.axes)}
        self._taken |= {tensor.name for tensor in program.tensors}
        self._taken |= {name for _, statement in statements(program.body) for name in defined(statement)}

    def fresh(self, base: str) -> str:
        """``<base>_<n>`` with the smallest free n."""
        number = 0
        while f"{base}_{number}" in self._taken:
            number += 1
        self._taken.add(f"{base}_{number}")
        return f"{base}_{number}"

    def unique(self, name: str) -> str:
        """The name itself if it is free, else a fresh one."""
        if name in self._taken:
            return self.fresh(name)
        self._taken.add(name)
        return name

"""What the IR has room for and this version cannot lower yet."""

from __future__ import annotations

from search.errors import Problem
from search.program.dtypes import program_dtypes
from search.program.ir import Cast, Program, Tile
from search.program.report import Report, child
from search.program.walk import placed, statements, walk

SUPPORTED_DTYPES = ("float32",)
"""Dtypes of tensors."""

_LATER = "not supported yet by this version"


def unsupported(program: Program) -> tuple[Problem, ...]:
    """The constructs of a legal program that no lowering of this version emits; () when it can be tuned."""
    report = Report()
    for tensor in program.tensors:
        pointer = child("/tensors", tensor.name)
        if tensor.like is None and tensor.dtype not in SUPPORTED_DTYPES:
            message = f"{tensor.dtype} tensors are {_LATER}"
            report.add(pointer + "/dtype", tensor.dtype, message, list(SUPPORTED_DTYPES))
    types = program_dtypes(program)
    for pointer, statement in statements(program.body):
        match statement:
            case Tile() if types.get(statement.name) == "bool":
                message = f"tiles of conditions are {_LATER}; use select(condition, 1.0, 0.0)"
                report.add(pointer + "/value", "bool", message, ["float32", "int32"])
            case _:
                pass
        for part in placed(statement, pointer):
            for node in walk(part.expr):
                if isinstance(node, Cast) and node.dtype in ("float16", "bfloat16"):
                    report.add(part.pointer, node.dtype, f"rounding to {node.dtype} is {_LATER}", ["float32", "int32"])
    return report.problems

"""``reduce`` into what it is short for: reducer, update, finalize."""

from __future__ import annotations

from dataclasses import replace

from search.program.dtypes import infer, program_dtypes, reduce_dtype
from search.program.ir import Finalize, Loop, Program, Reduce, Reducer, Statement, Update
from search.program.walk import defined, statements


def desugar(program: Program) -> Program:
    """The program without ``reduce``; its reducers are named after their results (``total`` → ``total_reducer``).

    Statements keep their order, three for one, so a statement's position is that of the desugared body. Deterministic.
    """
    taken = {param.name for param in program.params} | set(program.dims) | {axis.name for axis in program.axes}
    taken |= {tensor.name for tensor in program.tensors}
    taken |= {name for _, statement in statements(program.body) for name in defined(statement)}
    types = program_dtypes(program)

    def expanded(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for statement in body:
            match statement:
                case Reduce():
                    name = _fresh(statement.into, taken)
                    taken.add(name)
                    value = infer(statement.value, types, _ignore)
                    dtype = reduce_dtype(statement.op, value)
                    out.append(Reducer(name=name, op=statement.op, dtype=dtype))
                    out.append(Update(reducer=name, over=statement.over, value=statement.value))
                    out.append(Finalize(reducer=name, into=statement.into, rest=statement.rest))
                case Loop():
                    out.append(replace(statement, body=expanded(statement.body)))
                case _:
                    out.append(statement)
        return tuple(out)

    return replace(program, body=expanded(program.body))


def _fresh(into: str, taken: set[str]) -> str:
    """A legal name that nothing in the program has."""
    stem = f"{into[:48]}_reducer"
    name = stem
    number = 2
    while name in taken:
        name = f"{stem}{number}"
        number += 1
    return name


def _ignore(message: str) -> None:
    """Complaints belong to the verifier."""

"""The verifier: a reducer goes ``Active --update*--> Active --finalize--> Finalized``, a name is used as what it is.

``verify`` judges a program alone, ``verify_case`` its subscripts at actual dims. Problems carry JSON pointers into the
program's document.
"""

from __future__ import annotations

import contextlib

from search.errors import Problem
from search.program.arrays import array_axes, entry_axis
from search.program.bounds import verify_case
from search.program.declarations import NAME_RULE, check_declarations, name_problem
from search.program.dtypes import (
    BITWISE_OPS,
    INT,
    fits,
    reduce_dtype,
    tile_dtype,
    value_dtype,
)
from search.program.ir import (
    REDUCE_OPS,
    STRUCTURED_OPS,
    DType,
    Finalize,
    Let,
    Loop,
    Program,
    Reduce,
    ReduceOp,
    Reducer,
    StageBoundary,
    Statement,
    Store,
    Tile,
    Update,
)
from search.program.monoids import MONOIDS, result_dtypes
from search.program.reads import Reads, ReducerState
from search.program.report import Report, shown_text
from search.program.walk import KINDS, placed

__all__ = ["verify", "verify_case"]


def verify(program: Program) -> tuple[Problem, ...]:
    """Everything that makes the program illegal, in document order; () for a legal one."""
    report = Report()
    kinds = check_declarations(program, report)
    if report.problems:
        # what the body means depends on what was declared: one cause, one problem
        return report.problems
    return _Verifier(program, kinds, report).run()


class _Verifier:
    def __init__(self, program: Program, kinds: dict[str, str], report: Report) -> None:
        self.program = program
        self.report = report
        self.reads = Reads(program, kinds, report)
        self.defined_at: dict[str, str] = {}
        self.written: set[str] = set()
        self.siblings: dict[str, tuple[str, ...]] = {}
        """Result of a reduction to all results of it: a structured op delivers more than a program may need."""

    def run(self) -> tuple[Problem, ...]:
        if not self.program.body:
            self.report.add("/body", [], "the program has no statements; store an output")
        self.body(self.program.body, "/body", in_loop=False)
        self.finish()
        return self.report.problems

    # --- statements

    def body(self, body: tuple[Statement, ...], pointer: str, *, in_loop: bool) -> None:
        for position, statement in enumerate(body):
            here = f"{pointer}/{position}/{KINDS[type(statement)]}"
            if in_loop and not isinstance(statement, Update | Let | Tile | Loop):
                message = f"{KINDS[type(statement)]} cannot stand in a loop; updates go inside, the rest outside"
                self.report.add(here, None, message, ["update", "let", "tile", "loop"])
                continue
            self.statement(statement, here)

    def statement(self, statement: Statement, here: str) -> None:
        if not isinstance(statement, Reducer | Let | Finalize | StageBoundary | Loop):
            self.over(statement.over, here + "/over", isinstance(statement, Tile))
        types = {part.pointer: self.reads.expression(part) for part in placed(statement, here)}
        value = types.get(here + "/value")
        match statement:
            case Reducer():
                self.open_reducer(statement, here, types.get(here + "/seed"))
            case Update():
                self.update(statement, here, types)
            case Finalize():
                self.finalize(statement, here)
            case Reduce():
                self.operator(statement.op, here)
                dtype = reduce_dtype(statement.op, value)
                if statement.op in REDUCE_OPS:
                    self.contribution(statement.op, dtype, value, here)
                self.results(statement, statement.op, dtype, here)
            case Let():
                self.define(statement.name, here + "/name", value)
                self.reads.scalars.add(statement.name)
            case Tile():
                self.define(statement.name, here + "/name", value and tile_dtype(value))
                self.reads.tiles[statement.name] = statement
            case Store():
                self.store(statement, here, value)
            case Loop():
                self.loop(statement, here)
            case _:
                pass

    def over(self, over: tuple[str, ...], field: str, needed: bool) -> None:
        for position, axis in enumerate(over):
            self.reads.used.add(axis)
            if axis == self.reads.row:
                message = f"{axis!r} is the row axis: it is implied, statements run over column axes"
                self.report.add(f"{field}/{position}", axis, message, self.reads.columns)
            elif axis not in self.reads.axes:
                self.report.add(f"{field}/{position}", axis, f"{shown_text(axis)!r} is not an axis", self.reads.columns)
            elif axis in over[:position]:
                self.report.add(f"{field}/{position}", axis, f"axis {axis!r} stands twice; name it once")
        if needed and not over:
            self.report.add(
                field, [], "a tile has at least one column axis; one value per row is a let", self.reads.columns
            )

    def define(self, name: str, field: str, dtype: str | None) -> None:
        if problem := name_problem(name):
            self.report.add(field, name, problem, NAME_RULE)
            self.reads.used.add(name)  # nothing can use it, and that is no second problem
        elif name in self.reads.reducers:
            message = f"assignment to the reducer {name!r}: contributions go through update, its result gets a new name"
            self.report.add(field, name, message)
        elif name in self.reads.kinds:
            self.report.add(
                field, name, f"{name!r} is already the name of a {self.reads.kinds[name]}; choose another name"
            )
        elif name in self.defined_at:
            self.report.add(field, name, f"{name!r} is already defined by {self.defined_at[name]}; choose another name")
        self.defined_at.setdefault(name, field)
        if dtype is not None and name not in self.reads.types:
            self.reads.types[name] = dtype

    def operator(self, op: str, here: str) -> None:
        if op not in REDUCE_OPS:
            message = f"{shown_text(op)!r} is not associative with an identity: partials cannot be combined"
            self.report.add(here + "/op", op, message, list(REDUCE_OPS))

    def contribution(self, op: str, dtype: str, value: str | None, here: str) -> None:
        if op in BITWISE_OPS and value not in (None, "int32", INT):
            message = f"bitwise {op!r} works on int32, the value is {value}; use cast(value, int32)"
            self.report.add(here + "/value", value, message, ["int32"])
        elif not fits(value, dtype):
            message = f"the reducer holds {dtype}, the value is {value}; use cast or select"
            self.report.add(here + "/value", value, message, [dtype])

    def open_reducer(self, statement: Reducer, here: str, seed: str | None) -> None:
        self.operator(statement.op, here)
        self.define(statement.name, here + "/name", None)
        if statement.dtype not in ("float32", "int32"):
            message = "reducers accumulate in float32 or int32 (float16 and bfloat16 values are float32 once loaded)"
            self.report.add(here + "/dtype", statement.dtype, message, ["float32", "int32"])
        elif statement.op in BITWISE_OPS and statement.dtype != "int32":
            message = f"bitwise {statement.op!r} needs an int32 reducer"
            self.report.add(here + "/dtype", statement.dtype, message, ["int32"])
        elif statement.op in STRUCTURED_OPS and statement.dtype != "float32":
            message = f"{statement.op!r} works on float32; use cast(value, float32)"
            self.report.add(here + "/dtype", statement.dtype, message, ["float32"])
        elif not fits(seed, statement.dtype):
            message = f"the reducer holds {statement.dtype}, the seed is {seed}; use cast"
            self.report.add(here + "/seed", seed, message, [statement.dtype])
        if statement.order not in ("any", "strict"):
            self.report.add(here + "/order", statement.order, "unknown order", ["any", "strict"])
        if statement.op in STRUCTURED_OPS:
            self.plain(statement, here)
        self.shape(statement, here)
        self.reads.reducers.setdefault(statement.name, ReducerState(statement=statement, pointer=here))

    def plain(self, statement: Reducer, here: str) -> None:
        """A structured op takes no array, no order and no seed: its state is no value that an expression can name."""
        for field, given in (("shape", list(statement.shape)), ("seed", statement.seed), ("order", statement.order)):
            if given not in ([], None, "any"):
                message = f"{statement.op!r} holds several values and takes no {field!r}; leave it out"
                self.report.add(f"{here}/{field}", field, message, "nothing")

    def shape(self, statement: Reducer, here: str) -> None:
        taken: list[str] = []
        allowed = [*self.reads.columns, *self.program.dims]
        for position, entry in enumerate(statement.shape):
            field = f"{here}/shape/{position}"
            self.reads.used.add(entry)
            if entry not in allowed:
                self.report.add(field, entry, f"{shown_text(entry)!r} is not a column axis or a dim", allowed)
                continue
            try:
                axis = entry_axis(self.program, entry, (*statement.shape, *taken))
            except KeyError:
                message = f"no column axis runs over {entry!r}, so the result could not be read; declare one"
                self.report.add(field, entry, message, self.reads.columns)
                continue
            if axis in taken:
                self.report.add(field, entry, f"axis {axis!r} stands twice; name it once", self.reads.columns)
            taken.append(axis)
            self.reads.used.add(axis)

    def reducer(self, name: str, field: str) -> ReducerState | None:
        state = self.reads.reducers.get(name)
        if state is None:
            message = f"{shown_text(name)!r} is not a reducer opened before this statement"
            if name in self.reads.later:
                message += f"; it is defined by {self.reads.later[name]}"
            self.report.add(field, name, message, list(self.reads.reducers))
        return state

    def update(self, statement: Update, here: str, types: dict[str, str | None]) -> None:
        where = types.get(here + "/where")
        if statement.where is not None and where not in (None, "bool"):
            message = f"'where' is a condition, not {where}; compare it with something"
            self.report.add(here + "/where", where, message, ["bool"])
        for position in range(len(statement.index)):
            dtype = types[f"{here}/index/{position}"]
            if not fits(dtype, "int32"):
                self.report.add(f"{here}/index/{position}", dtype, f"an index is int32, not {dtype}", ["int32"])
        state = self.reducer(statement.reducer, here + "/reducer")
        if state is None:
            return
        if state.into is not None:
            message = f"update of {statement.reducer!r} after its finalize; move it before, or open another reducer"
            self.report.add(here + "/reducer", statement.reducer, message)
        if len(statement.index) != len(state.statement.shape):
            shape = ", ".join(state.statement.shape) or "one value per row"
            message = (
                f"{statement.reducer!r} has {len(state.statement.shape)} axes ({shape}), not {len(statement.index)}; "
                "give one index expression for each"
            )
            self.report.add(here + "/index", len(statement.index), message, len(state.statement.shape))
        state.updated = True
        if state.statement.op in REDUCE_OPS:
            self.contribution(state.statement.op, state.statement.dtype, types[here + "/value"], here)

    def finalize(self, statement: Finalize, here: str) -> None:
        state = self.reducer(statement.reducer, here + "/reducer")
        if state is not None and state.into is not None:
            message = f"{statement.reducer!r} is finalized already, into {state.into!r}; remove the second finalize"
            self.report.add(here + "/reducer", statement.reducer, message)
        self.results(statement, state.statement.op if state else None, state.statement.dtype if state else None, here)
        if state is not None and state.statement.shape:
            self.reads.scalars.discard(statement.into)
            with contextlib.suppress(KeyError):  # reported where the reducer was opened
                self.reads.arrays[statement.into] = array_axes(self.program, state.statement)
        if state is not None:
            state.into = state.into or statement.into

    def results(self, statement: Finalize | Reduce, op: ReduceOp | None, dtype: DType | None, here: str) -> None:
        """Define what a reduction delivers: one name, or the components of a structured op in their order."""
        names, monoid = statement.results, MONOIDS.get(op) if op else None
        dtypes = result_dtypes(op, dtype) if op and dtype else ()
        if op in REDUCE_OPS and len(names) != len(dtypes):
            delivered = [component.name for component in monoid.components] if monoid else "one name"
            message = f"{op!r} delivers {len(dtypes)} value{'s' * (monoid is not None)}, not {len(names)}"
            if monoid is not None:
                message += f": 'into' lists names for its {', '.join(delivered)}, in this order"
            self.report.add(here + "/into", list(names) if statement.rest else statement.into, message, delivered)
        for position, name in enumerate(names):
            field = f"{here}/into/{position}" if statement.rest else here + "/into"
            self.define(name, field, dtypes[position] if position < len(dtypes) else None)
            self.reads.scalars.add(name)
            self.siblings[name] = names

    def store(self, statement: Store, here: str, value: str | None) -> None:
        name = statement.tensor
        field = here + "/tensor"
        outputs = [tensor.name for tensor in self.program.tensors if tensor.role == "output"]
        tensor = self.reads.tensors.get(name)
        if tensor is None or tensor.role != "output":
            what = "no output of the program"
            if tensor is not None:
                what = "an input; declare an output"
            elif name in self.reads.reducers:
                what = "a reducer; use update"
            self.report.add(field, name, f"cannot store to {shown_text(name)!r}: it is {what}", outputs)
            return
        if name in self.written:
            self.report.add(field, name, f"output {name!r} is written twice; keep the first value in a tile")
        self.written.add(name)
        wanted = [axis for axis in tensor.axes if axis != self.reads.row]
        if missing := [axis for axis in wanted if axis not in statement.over]:
            message = f"output {name!r} is only partly written: the store does not run over {', '.join(missing)}"
            self.report.add(here + "/over", list(statement.over), message, wanted)
        elif extra := [axis for axis in statement.over if axis in self.reads.columns and axis not in wanted]:
            message = f"each element of {name!r} would be written many times, once per point of {', '.join(extra)}"
            self.report.add(here + "/over", list(statement.over), message, wanted)
        dtype = value_dtype(self.reads.types[name])
        if not fits(value, dtype):
            message = f"output {name!r} holds {dtype}, the value is {value}; use cast or select"
            self.report.add(here + "/value", value, message, [dtype])

    def loop(self, statement: Loop, here: str) -> None:
        self.reads.used.add(statement.count)
        if statement.count not in self.reads.integers:
            message = f"{shown_text(statement.count)!r} is not a dim or an integer param"
            self.report.add(here + "/count", statement.count, message, sorted(self.reads.integers))
        if not statement.body:
            self.report.add(here + "/body", [], "the loop has no statements; remove it")
        scalars, tiles, counters = set(self.reads.scalars), dict(self.reads.tiles), set(self.reads.counters)
        if statement.index is not None:
            self.define(statement.index, here + "/index", "int32")
            self.reads.counters.add(statement.index)
        self.body(statement.body, here + "/body", in_loop=True)
        # zero trips are allowed, so nothing that only the loop defines exists after it
        self.reads.scalars, self.reads.tiles, self.reads.counters = scalars, tiles, counters

    def finish(self) -> None:
        for name, state in self.reads.reducers.items():
            if state.into is None:
                message = f"reducer {name!r} is never finalized; its result cannot be read"
                self.report.add(state.pointer, name, message, {"finalize": {"reducer": name, "into": "..."}})
            elif not state.updated:
                self.report.add(state.pointer, name, f"reducer {name!r} is never updated; add an update, or remove it")
        for name, field in self.defined_at.items():
            together = self.siblings.get(name, (name,))
            if self.reads.used.isdisjoint(together) and name not in self.reads.reducers:
                self.report.add(field, name, f"{shown_text(name)!r} is computed and never used; remove it or use it")
        for tensor in self.program.tensors:
            if tensor.role == "input" and tensor.name not in self.reads.used:
                self.report.add(
                    f"/tensors/{tensor.name}", tensor.name, f"input {tensor.name!r} is never read; remove it"
                )
            elif tensor.role == "output" and tensor.name not in self.written:
                self.report.add(
                    f"/tensors/{tensor.name}", tensor.name, f"output {tensor.name!r} is never written; store it"
                )
        unused = [(f"/params/{param.name}", "param", param.name) for param in self.program.params]
        unused += [(f"/dims/{position}", "dim", dim) for position, dim in enumerate(self.program.dims)]
        unused += [(f"/axes/{axis.name}", "axis", axis.name) for axis in self.program.axes]
        for field, kind, name in unused:
            if name not in self.reads.used:
                self.report.add(field, name, f"{kind} {name!r} is never used; remove it")

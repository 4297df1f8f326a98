"""Programs as JSON documents: ``parse_program`` and ``dump_program``, inverse to each other.

Order of the keys of ``params``, ``axes`` and ``tensors`` is kept in the Program (the digest ignores it). Parsing judges
form only; legality is ``verify``'s. Wrong programs of the right form therefore parse, and are refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from search.errors import InvalidInput
from search.program.expr import format_expression, parse_expression
from search.program.grammar import Scope, program_scope
from search.program.ir import (
    Axis,
    Expr,
    Finalize,
    Let,
    Loop,
    Param,
    Program,
    Reduce,
    Reducer,
    StageBoundary,
    Statement,
    Store,
    Tensor,
    Tile,
    Update,
)
from search.program.limits import DEFAULT_LIMITS, Limits
from search.program.report import Report, child, shown_text
from search.program.schema import (
    DOCUMENT_KEYS,
    MOST_RESULTS,
    PROGRAM_SCHEMA,
    STATEMENTS,
    TENSOR_KEYS,
    FieldKind,
)
from search.program.walk import KINDS

__all__ = ["PROGRAM_SCHEMA", "dump_program", "parse_program"]

_CLASSES: dict[str, Callable[..., Statement]] = {kind: statement for statement, kind in KINDS.items()}
_PROBLEM_KEYS = 8
"""Unknown keys of one object that are reported one by one."""


def parse_program(document: Any, *, limits: Limits = DEFAULT_LIMITS) -> Program:
    """The Program that a JSON document states; InvalidInput with every problem of form, whatever was given."""
    report = Report()
    program = _Reader(report, limits).program(document)
    report.raise_if_any()
    return program


def dump_program(program: Program) -> dict[str, Any]:
    """The document of a program; what has its default value is left out."""
    scope = program_scope(program)
    return {
        "name": program.name,
        "params": {param.name: param.default for param in program.params},
        "dims": list(program.dims),
        "axes": {axis.name: {"dim": axis.dim, "kind": axis.kind} for axis in program.axes},
        "tensors": {tensor.name: _dump_tensor(tensor) for tensor in program.tensors},
        "body": [_dump_statement(statement, scope) for statement in program.body],
    }


class _Reader:
    def __init__(self, report: Report, limits: Limits) -> None:
        self.report = report
        self.limits = limits
        self.scope = Scope(tensors={})
        self.statements = 0

    # --- shapes of JSON

    def mapping(self, value: Any, field: str, what: str) -> dict[str, Any] | None:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return dict(value)
        self.report.add(field, value, f"{what} is an object", "an object with text keys")
        return None

    def items(self, value: Any, field: str, limit: int) -> list[Any]:
        if not isinstance(value, list | tuple):
            self.report.add(field, value, "expected a list", f"a list of at most {limit}")
            return []
        return list(value) if self.few(len(value), limit, field) else []

    def few(self, count: int, limit: int, field: str) -> bool:
        if count > limit:
            self.report.add(field, count, f"{count} are too many", f"<= {limit}")
        return count <= limit

    def text(self, value: Any, field: str) -> str:
        if not isinstance(value, str):
            self.report.add(field, value, "expected text", "a string")
            return ""
        return value

    def texts(self, value: Any, field: str, limit: int) -> tuple[str, ...]:
        found = self.items(value, field, limit)
        return tuple(self.text(item, child(field, position)) for position, item in enumerate(found))

    def keys(self, found: Mapping[str, Any], field: str, required: tuple[str, ...], optional: tuple[str, ...]) -> bool:
        """Whether nothing required is missing; unknown keys are reported too."""
        allowed = [*required, *optional]
        unknown = [key for key in found if key not in allowed]
        for key in unknown[:_PROBLEM_KEYS]:
            message = f"unknown key {shown_text(key)!r}"
            if field.endswith("/finalize") and key in ("where", "over"):
                message = f"finalize is one collective for all lanes and takes no {key!r}; put it on the update"
            elif field.endswith("/update") and key in ("op", "dtype"):
                message = f"an update has its reducer's {key} and takes none of its own; open another reducer"
            self.report.add(child(field, key), found[key], message, allowed)
        missing = [key for key in required if key not in found]
        for key in missing:
            self.report.add(child(field, key), None, f"{key!r} is missing", allowed)
        return not missing

    # --- declarations

    def program(self, document: Any) -> Program:
        found = self.mapping(document, "", "a program")
        if found is None:
            raise InvalidInput(self.report.problems)
        required = tuple(key for key, needed in DOCUMENT_KEYS.items() if needed)
        self.keys(found, "", required, tuple(key for key, needed in DOCUMENT_KEYS.items() if not needed))
        name = self.text(found.get("name", ""), "/name")
        params = self.params(found.get("params", {}))
        dims = self.texts(found.get("dims", ()), "/dims", self.limits.dims)
        axes = self.axes(found.get("axes", {}))
        tensors = self.tensors(found.get("tensors", {}))
        bare = Program(name=name, params=params, dims=dims, axes=axes, tensors=tensors, body=())
        self.scope = program_scope(bare)
        body = self.body(found.get("body", ()), "/body", depth=0)
        return Program(name=name, params=params, dims=dims, axes=axes, tensors=tensors, body=body)

    def params(self, value: Any) -> tuple[Param, ...]:
        found = self.mapping(value, "/params", "params")
        if found is None or not self.few(len(found), self.limits.params, "/params"):
            return ()
        params = []
        for name, default in found.items():
            if isinstance(default, bool) or not isinstance(default, int | float):
                self.report.add(child("/params", name), default, "a param's default is a number", "a finite number")
            else:
                params.append(Param(name=name, default=default))
        return tuple(params)

    def axes(self, value: Any) -> tuple[Axis, ...]:
        found = self.mapping(value, "/axes", "axes")
        if found is None or not self.few(len(found), self.limits.axes, "/axes"):
            return ()
        axes = []
        for name, entry in found.items():
            field = child("/axes", name)
            axis = self.mapping(entry, field, "an axis")
            if axis is not None and self.keys(axis, field, ("dim", "kind"), ()):
                kind = axis["kind"]
                if kind not in ("row", "column"):
                    self.report.add(field + "/kind", kind, "unknown kind of axis", ["row", "column"])
                    kind = "column"
                axes.append(Axis(name=name, dim=self.text(axis["dim"], field + "/dim"), kind=kind))
        return tuple(axes)

    def tensors(self, value: Any) -> tuple[Tensor, ...]:
        found = self.mapping(value, "/tensors", "tensors")
        if found is None or not self.few(len(found), self.limits.tensors, "/tensors"):
            return ()
        tensors = []
        for name, entry in found.items():
            field = child("/tensors", name)
            tensor = self.mapping(entry, field, "a tensor")
            optional = tuple(key for key, needed in TENSOR_KEYS.items() if not needed)
            if tensor is None or not self.keys(tensor, field, ("axes", "role"), optional):
                continue
            role = tensor["role"]
            if role not in ("input", "output"):
                self.report.add(field + "/role", role, "unknown role", ["input", "output"])
                role = "input"
            axes = self.texts(tensor["axes"], field + "/axes", self.limits.axes)
            given = {key: self.text(tensor[key], f"{field}/{key}") for key in optional if key in tensor}
            # without either, the dtype is float32; with both, the verifier complains
            dtype = given.get("dtype", None if "like" in given else "float32")
            tensors.append(
                Tensor(
                    name=name, axes=axes, role=role, dtype=dtype, like=given.get("like"), aliases=given.get("aliases")
                )
            )
        return tuple(tensors)

    # --- statements

    def body(self, value: Any, field: str, depth: int) -> tuple[Statement, ...]:
        if depth > self.limits.loop_depth:
            self.report.add(field, None, "loops are nested too deep", f"<= {self.limits.loop_depth}")
            return ()
        found = self.items(value, field, self.limits.statements)
        self.statements += len(found)
        if not self.few(self.statements, self.limits.statements, field):
            return ()
        parsed = [self.statement(item, child(field, position), depth) for position, item in enumerate(found)]
        return tuple(statement for statement in parsed if statement is not None)

    def statement(self, value: Any, field: str, depth: int) -> Statement | None:
        entry = self.mapping(value, field, "a statement")
        if entry is None:
            return None
        kind = next(iter(entry), "")
        if len(entry) != 1 or kind not in STATEMENTS:
            message = "a statement is an object with one key: what it does"
            self.report.add(field, list(entry)[:_PROBLEM_KEYS], message, list(STATEMENTS))
            return None
        here = child(field, kind)
        fields = STATEMENTS[kind]
        found = self.mapping(entry[kind], here, f"a {kind}")
        if found is None:
            return None
        required = tuple(name for name, (_, needed) in fields.items() if needed)
        optional = tuple(name for name, (_, needed) in fields.items() if not needed)
        complete = self.keys(found, here, required, optional)
        outer = self.scope
        if kind == "loop" and isinstance(found.get("index"), str):
            self.scope = replace(outer, counters=(*outer.counters, found["index"]))
        values = {
            name: self.field(fields[name][0], found[name], child(here, name), depth) for name in found if name in fields
        }
        self.scope = outer
        if not complete or any(part is None for part in values.values()):
            return None
        if "into" in values:
            into, *rest = values["into"]
            values |= {"into": into, "rest": tuple(rest)}
        return _CLASSES[kind](**values)

    def field(self, kind: FieldKind, value: Any, field: str, depth: int) -> Any:
        match kind:
            case "name":
                return self.text(value, field)
            case "names":
                return self.texts(value, field, self.limits.axes)
            case "results":
                return self.results(value, field)
            case "expression":
                return self.expression(value, field)
            case "expressions":
                found = self.items(value, field, self.limits.axes)
                parsed = [self.expression(item, child(field, position)) for position, item in enumerate(found)]
                return None if any(expr is None for expr in parsed) else tuple(parsed)
            case "body":
                return self.body(value, field, depth + 1)

    def results(self, value: Any, field: str) -> tuple[str, ...] | None:
        if not isinstance(value, list | tuple):
            return (self.text(value, field),)
        found = self.texts(value, field, MOST_RESULTS)
        if not found:
            self.report.add(field, value, "'into' is a name, or a list of names", f"1 to {MOST_RESULTS} names")
        return found or None

    def expression(self, value: Any, field: str) -> Expr | None:
        if not isinstance(value, str):
            self.report.add(field, value, "an expression is text", 'a string, like "x * rstd"')
            return None
        try:
            return parse_expression(value, self.scope, pointer=field, limits=self.limits)
        except InvalidInput as error:
            self.report.extend(error.problems)
            return None


def _dump_tensor(tensor: Tensor) -> dict[str, Any]:
    parts = {"dtype": tensor.dtype, "like": tensor.like, "aliases": tensor.aliases}
    out: dict[str, Any] = {"axes": list(tensor.axes), "role": tensor.role}
    return out | {key: value for key, value in parts.items() if value is not None}


def _dump_results(statement: Finalize | Reduce) -> str | list[str]:
    return list(statement.results) if statement.rest else statement.into


def _dump_statement(statement: Statement, scope: Scope) -> dict[str, Any]:
    def text(expr: Expr) -> str:
        return format_expression(expr, scope)

    out: dict[str, Any]
    match statement:
        case Reducer():
            out = {"name": statement.name, "op": statement.op}
            if statement.dtype != "float32":
                out["dtype"] = statement.dtype
            if statement.shape:
                out["shape"] = list(statement.shape)
            if statement.seed is not None:
                out["seed"] = text(statement.seed)
            if statement.order != "any":
                out["order"] = statement.order
        case Update():
            out = {"reducer": statement.reducer, "over": list(statement.over), "value": text(statement.value)}
            if statement.index:
                out["index"] = [text(index) for index in statement.index]
            if statement.where is not None:
                out["where"] = text(statement.where)
        case Finalize():
            out = {"reducer": statement.reducer, "into": _dump_results(statement)}
        case Reduce():
            out = {"into": _dump_results(statement), "op": statement.op}
            out |= {"over": list(statement.over), "value": text(statement.value)}
        case Let():
            out = {"name": statement.name, "value": text(statement.value)}
        case Tile():
            out = {"name": statement.name, "over": list(statement.over), "value": text(statement.value)}
        case Store():
            out = {"tensor": statement.tensor, "over": list(statement.over), "value": text(statement.value)}
        case StageBoundary():
            out = {}
        case Loop():
            out = {"count": statement.count}
            if statement.index is not None:
                out["index"] = statement.index
            out["body"] = [_dump_statement(inner, scope) for inner in statement.body]
    return {KINDS[type(statement)]: out}

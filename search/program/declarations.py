"""Legality of what a program declares: names, params, dims, axes and tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from search.program.grammar import FLOAT32_MAX, INT32_MAX, RESERVED
from search.program.ir import DTYPE_BYTES, Param, Program, Tensor
from search.program.report import Report, character_words, child, shown_text

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
NAME_RULE = "an ASCII letter, then up to 63 ASCII letters, digits or _; no reserved word"


def name_problem(name: str) -> str | None:
    """What is wrong with a name, or None."""
    if not NAME.fullmatch(name):
        odd = next((character for character in name if not character.isascii()), None)
        return f"{shown_text(name)!r} is not a legal name" + (f": {character_words(odd)}" if odd else "")
    if name in RESERVED:
        return f"{name!r} is a reserved word; choose another name"
    return None


def check_declarations(program: Program, report: Report) -> dict[str, str]:
    """Reports every illegal declaration; answers each declared name with what it is (``dim``, ``tensor``, ...)."""
    if problem := name_problem(program.name):
        report.add("/name", program.name, problem, NAME_RULE)
    kinds: dict[str, str] = {}
    _check_names("param", "/params", [param.name for param in program.params], kinds, report)
    for position, dim in enumerate(program.dims):
        _check_name("dim", child("/dims", position), dim, kinds, report)
    _check_names("axis", "/axes", [axis.name for axis in program.axes], kinds, report)
    _check_names("tensor", "/tensors", [tensor.name for tensor in program.tensors], kinds, report)
    for param in program.params:
        _check_param(param, report)
    _check_axes(program, report)
    for tensor in program.tensors:
        _check_tensor(tensor, program, report)
    if not any(tensor.role == "output" for tensor in program.tensors):
        report.add("/tensors", None, "the program has no output", 'a tensor with "role": "output"')
    return kinds


def _check_names(kind: str, pointer: str, names: Iterable[str], kinds: dict[str, str], report: Report) -> None:
    for name in names:
        _check_name(kind, child(pointer, name), name, kinds, report)


def _check_name(kind: str, pointer: str, name: str, kinds: dict[str, str], report: Report) -> None:
    if problem := name_problem(name):
        report.add(pointer, name, problem, NAME_RULE)
    elif name in kinds:
        report.add(pointer, name, f"{name!r} is already the name of a {kinds[name]}; every name stands for one thing")
    kinds.setdefault(name, kind)


def _check_param(param: Param, report: Report) -> None:
    if problem := param_problem(param, param.default):
        report.add(child("/params", param.name), param.default, problem[0], problem[1])


def param_problem(param: Param, value: object) -> tuple[str, str] | None:
    """Why ``value`` cannot be the param's value, and what can; None when it can."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"param {param.name!r} is a number", "a finite number"
    if type(param.default) is int:
        if not isinstance(value, int) or not -INT32_MAX - 1 <= value <= INT32_MAX:
            return f"param {param.name!r} is an integer (its default is one)", "an int32"
        return None
    # an int is compared as it is: float() of a huge one overflows
    if isinstance(value, float) and not math.isfinite(value):
        return f"param {param.name!r} must be finite", "a finite number"
    if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        return f"param {param.name!r} does not fit in float32", f"a number of magnitude <= {FLOAT32_MAX}"
    return None


def _check_axes(program: Program, report: Report) -> None:
    for axis in program.axes:
        pointer = child("/axes", axis.name)
        if axis.dim not in program.dims:
            report.add(pointer + "/dim", axis.dim, f"{shown_text(axis.dim)!r} is not a dim", list(program.dims))
        if axis.kind not in ("row", "column"):
            report.add(pointer + "/kind", axis.kind, "unknown kind of axis", ["row", "column"])
    rows = [axis.name for axis in program.axes if axis.kind == "row"]
    if len(rows) != 1:
        message = "a program has exactly one row axis: its program instances"
        report.add("/axes", rows, message, 'one axis with "kind": "row"')


def _check_tensor(tensor: Tensor, program: Program, report: Report) -> None:
    pointer = child("/tensors", tensor.name)
    axes = {axis.name: axis for axis in program.axes}
    for position, name in enumerate(tensor.axes):
        if name not in axes:
            report.add(f"{pointer}/axes/{position}", name, f"{shown_text(name)!r} is not an axis", list(axes))
        elif name in tensor.axes[:position]:
            report.add(
                f"{pointer}/axes/{position}", name, f"{tensor.name} has axis {name!r} twice; declare another axis"
            )
    if not tensor.axes:
        report.add(pointer + "/axes", [], "a tensor has at least one axis; a scalar is a param", list(axes))
    if tensor.role not in ("input", "output"):
        report.add(pointer + "/role", tensor.role, "unknown role", ["input", "output"])
    if tensor.role == "output" and not any(axes[name].kind == "row" for name in tensor.axes if name in axes):
        message = f"output {tensor.name!r} has no row axis: every program instance would write the same elements"
        report.add(
            pointer + "/axes", list(tensor.axes), message, [axis.name for axis in program.axes if axis.kind == "row"]
        )
    _check_dtype(tensor, program, pointer, report)
    _check_alias(tensor, program, pointer, report)


def _check_dtype(tensor: Tensor, program: Program, pointer: str, report: Report) -> None:
    if tensor.like is None:
        if tensor.dtype not in DTYPE_BYTES:
            report.add(pointer + "/dtype", tensor.dtype, f"{tensor.name} has an unknown dtype", list(DTYPE_BYTES))
        return
    if tensor.dtype is not None:
        report.add(pointer + "/dtype", tensor.dtype, "a tensor has either a dtype or a tensor it is like, not both")
    plain = [other.name for other in program.tensors if other.like is None and other.name != tensor.name]
    if tensor.like not in plain:
        message = f"{tensor.name} can only be like a tensor that has a dtype of its own"
        report.add(pointer + "/like", tensor.like, message, plain)


def _check_alias(tensor: Tensor, program: Program, pointer: str, report: Report) -> None:
    if tensor.aliases is None:
        return
    fitting = [
        other.name
        for other in program.tensors
        if other.role == "input"
        and other.axes == tensor.axes
        and (tensor.like == other.name or (other.like or other.dtype) == (tensor.like or tensor.dtype))
    ]
    if tensor.role != "output" or tensor.aliases not in fitting:
        message = "only an output can alias, and only an input of the same axes and dtype"
        report.add(pointer + "/aliases", tensor.aliases, message, fitting)
        return
    others = [other.name for other in program.tensors if other.aliases == tensor.aliases and other.name != tensor.name]
    if others and others[0] < tensor.name:
        message = f"{tensor.aliases!r} is shared with {others[0]!r} already, and outputs overlap nothing"
        report.add(pointer + "/aliases", tensor.aliases, message, [name for name in fitting if name != tensor.aliases])

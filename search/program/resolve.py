"""From what a caller names (kernel or program, params, dims, dtypes) to a Case, or to every reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search.errors import InvalidInput
from search.program.case import Case
from search.program.declarations import param_problem
from search.program.digest import program_digest
from search.program.document import parse_program
from search.program.dtypes import tensor_dtypes, value_dtype
from search.program.ir import Program
from search.program.library import kernel_named, kernels
from search.program.limits import ADMITTED_LIMITS, DEFAULT_LIMITS, Limits
from search.program.report import Report, child, shown_text
from search.program.size import check_size
from search.program.support import SUPPORTED_DTYPES, interchangeable
from search.program.verify import verify, verify_case

CASE_KEYS = ("kernel", "program", "params", "dims", "dtypes")


def resolve_case(document: Any, *, pointer: str = "", limits: Limits | None = None, admitted: bool = False) -> Case:
    """The complete case that ``{"kernel" or "program", "params", "dims", "dtypes"}`` names.

    Missing params and dtypes take their defaults. ``admitted``: the case was resolved before, so its program may have a
    name that has become a built-in kernel's since. ``limits`` left out: the default ones, or ``ADMITTED_LIMITS``.
    InvalidInput with every problem found; its pointers start with ``pointer``. A resolved case's own ``document()``
    resolves to the same case.
    """
    try:
        return _resolved(document, limits or (ADMITTED_LIMITS if admitted else DEFAULT_LIMITS), admitted)
    except InvalidInput as error:
        raise error.under(pointer) from None


def _resolved(document: Any, limits: Limits, admitted: bool) -> Case:
    report = Report()
    document = report.members(document, CASE_KEYS, not_an_object="a case is an object")
    program = _program(document, limits, admitted, report)
    if program is None:
        report.raise_if_any()
    assert program is not None
    params = _params(document.get("params"), program, report)
    dims = _dims(document.get("dims"), program, limits, report)
    dtypes = _dtypes(document.get("dtypes"), program, report)
    report.raise_if_any()
    sent = document.get("program") is not None
    case = Case(kernel=program.name, program=program, params=params, dims=dims, dtypes=dtypes, from_document=sent)
    check_size(case, limits, report)
    for problem in verify_case(case):
        # of a built-in kernel the caller chose the dims only
        field = "/program" + problem.field if sent else "/dims"
        report.add(field, problem.value if sent else dims, problem.message, problem.allowed)
    report.raise_if_any()
    return case


def _program(document: Mapping[str, Any], limits: Limits, admitted: bool, report: Report) -> Program | None:
    name, given = document.get("kernel"), document.get("program")
    if given is None:
        known = kernel_named(name) if isinstance(name, str) else None
        if known is not None:
            return known.program
        message = "name a kernel, or send a program" if name is None else "unknown kernel"
        report.add("/kernel", name, message, list(kernels()))
        return None
    try:
        program = parse_program(given, limits=limits)
    except InvalidInput as error:
        report.extend(problem.under("/program") for problem in error.problems)
        return None
    if name is not None and name != program.name:
        message = "a case has a kernel or a program, not both (or the kernel is the program's own name)"
        report.add("/kernel", name, message, [program.name])
    problems = verify(program)
    report.extend(problem.under("/program") for problem in problems)
    if problems:
        # the declarations may be the problem, so dims and params cannot be judged by them
        return None
    built_in = None if admitted else kernel_named(program.name)
    if built_in is not None:
        defaults = {param.name: param.default for param in program.params}
        if program_digest(program, defaults) != program_digest(built_in.program, built_in.params):
            message = f"{program.name!r} is a built-in kernel and this is another program; choose another name"
            report.add("/program/name", program.name, message)
    return program


def _given(value: Any, field: str, known: tuple[str, ...], what: str, report: Report) -> dict[str, Any]:
    """The object at ``field``, without its unknown keys (which are reported)."""
    if value is None:
        return {}
    allowed = list(known) or f"nothing: the program has no {what}s"
    if not isinstance(value, Mapping):
        report.add(field, value, f"expected an object: {what} to value", allowed)
        return {}
    unknown = [key for key in value if key not in known]
    for key in unknown[:8]:
        none = "" if known else f": the program has no {what}s"
        report.add(child(field, str(key)), value[key], f"unknown {what} {shown_text(str(key))!r}{none}", allowed)
    return {key: value[key] for key in value if key in known}


def _params(value: Any, program: Program, report: Report) -> dict[str, float | int]:
    known = tuple(param.name for param in program.params)
    given = _given(value, "/params", known, "param", report)
    params: dict[str, float | int] = {}
    for param in program.params:
        chosen = given.get(param.name, param.default)
        if problem := param_problem(param, chosen):
            report.add(child("/params", param.name), chosen, problem[0], problem[1])
        else:
            # 1 given for a float param is 1.0: the key of a case must not depend on how a number was typed
            params[param.name] = chosen if type(param.default) is int else float(chosen)
    return params


def _dims(value: Any, program: Program, limits: Limits, report: Report) -> dict[str, int]:
    given = _given(value, "/dims", program.dims, "dim", report)
    allowed = f"an integer from 1 to {limits.dim_extent}"
    dims: dict[str, int] = {}
    for dim in program.dims:
        extent = given.get(dim)
        field = child("/dims", dim)
        if dim not in given:
            report.add(field, None, f"dim {dim!r} is missing", allowed)
        elif isinstance(extent, bool) or not isinstance(extent, int):
            report.add(field, extent, f"dim {dim!r} is an integer", allowed)
        elif extent < 1:
            report.add(field, extent, f"dim {dim!r} must be positive", allowed)
        elif extent > limits.dim_extent:
            report.add(field, extent, f"dim {dim!r} is too large", allowed)
        else:
            dims[dim] = extent
    return dims


def _dtypes(value: Any, program: Program, report: Report) -> dict[str, str]:
    given = _given(value, "/dtypes", tuple(tensor.name for tensor in program.tensors), "tensor", report)
    chosen: dict[str, str] = {}
    declared = tensor_dtypes(program, {})
    for name, dtype in given.items():
        allowed = interchangeable(declared[name])
        if dtype in allowed:
            chosen[name] = dtype
        elif dtype in SUPPORTED_DTYPES:
            message = f"{name} is computed with as {value_dtype(declared[name])}, which {dtype} is not once it is read"
            report.add(child("/dtypes", name), dtype, message, list(allowed))
        else:
            report.add(child("/dtypes", name), dtype, "unsupported dtype", list(allowed))
    resolved = tensor_dtypes(program, chosen)
    for tensor in program.tensors:
        if tensor.like is not None and resolved[tensor.name] != resolved[tensor.like]:
            message = f"{tensor.name} has the dtype of {tensor.like}"
            report.add(child("/dtypes", tensor.name), resolved[tensor.name], message, [resolved[tensor.like]])
        elif tensor.aliases is not None and resolved[tensor.name] != resolved[tensor.aliases]:
            message = f"{tensor.name} shares the buffer of {tensor.aliases}, so it has its dtype"
            report.add(child("/dtypes", tensor.name), resolved[tensor.name], message, [resolved[tensor.aliases]])
    return resolved

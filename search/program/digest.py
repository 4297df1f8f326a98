"""The digest of a program with its params: what it computes, not how it was written down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from search.program.desugar import desugar
from search.program.format import format_expression
from search.program.ir import Loop, Program, Statement
from search.program.walk import KINDS, defined, renamed, statements


def program_digest(program: Program, params: Mapping[str, float | int]) -> str:
    """sha256 (hex) of the canonical form. ``params`` are the resolved values, every param of the program.

    Kept: names of params, dims, axes and tensors, declarations, statement order. Left out: the program's name, names of
    locals, the order in which things are declared, white space, and whether a ``reduce`` was written out.
    """
    text = json.dumps(canonical_form(program, params), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def canonical_form(program: Program, params: Mapping[str, float | int]) -> dict[str, Any]:
    """What the digest is taken over."""
    plain = desugar(program)
    # '%' cannot start a name, so a local can never meet a declared one
    found = [name for _, statement in statements(plain.body) for name in defined(statement)]
    locals_ = {name: f"%{number}" for number, name in enumerate(dict.fromkeys(found))}
    return {
        "params": {
            # 1 and 1.0 are the same value of a float param
            param.name: params[param.name] if type(param.default) is int else float(params[param.name])
            for param in program.params
        },
        "dims": sorted(program.dims),
        "axes": {axis.name: [axis.dim, axis.kind] for axis in program.axes},
        "tensors": {
            tensor.name: [list(tensor.axes), tensor.role, tensor.dtype, tensor.like, tensor.aliases]
            for tensor in program.tensors
        },
        "body": [_statement(statement, locals_) for statement in plain.body],
    }


def _statement(statement: Statement, locals_: Mapping[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {"statement": KINDS[type(statement)]}
    for field in fields(statement):
        value = getattr(statement, field.name)
        if isinstance(statement, Loop) and field.name == "body":
            out["body"] = [_statement(inner, locals_) for inner in statement.body]
        elif field.name in ("name", "into", "reducer"):
            out[field.name] = locals_.get(value, value)
        elif field.name == "rest":
            # left out when empty: programs of scalar reductions keep the digest that they always had
            out |= {"rest": [locals_.get(name, name) for name in value]} if value else {}
        elif isinstance(statement, Loop) and field.name == "index":
            if value is not None:
                out["index"] = locals_[value]
        elif field.name == "index":
            out["index"] = [format_expression(renamed(expr, locals_)) for expr in value]
        elif field.name in ("value", "seed", "where"):
            out[field.name] = None if value is None else format_expression(renamed(value, locals_))
        else:
            out[field.name] = list(value) if isinstance(value, tuple) else value
    return out

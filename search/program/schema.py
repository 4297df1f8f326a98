"""The form of program documents: which keys there are, as tables for the parser and as JSON Schema for OpenAPI."""

from __future__ import annotations

from typing import Any, Literal

from search.program.ir import DTYPE_BYTES, REDUCE_OPS
from search.program.limits import DEFAULT_LIMITS

FieldKind = Literal["name", "names", "results", "expression", "expressions", "body"]

STATEMENTS: dict[str, dict[str, tuple[FieldKind, bool]]] = {
    "reducer": {
        "name": ("name", True),
        "op": ("name", True),
        "dtype": ("name", False),
        "shape": ("names", False),
        "seed": ("expression", False),
        "order": ("name", False),
    },
    "update": {
        "reducer": ("name", True),
        "over": ("names", True),
        "value": ("expression", True),
        "index": ("expressions", False),
        "where": ("expression", False),
    },
    "finalize": {"reducer": ("name", True), "into": ("results", True)},
    "reduce": {
        "into": ("results", True),
        "op": ("name", True),
        "over": ("names", True),
        "value": ("expression", True),
    },
    "let": {"name": ("name", True), "value": ("expression", True)},
    "tile": {"name": ("name", True), "over": ("names", True), "value": ("expression", True)},
    "store": {"tensor": ("name", True), "over": ("names", True), "value": ("expression", True)},
    "stage": {},
    "loop": {"count": ("name", True), "index": ("name", False), "body": ("body", True)},
}
"""Statement to its keys: what stands there, and whether it must."""

DOCUMENT_KEYS = {"name": True, "params": False, "dims": True, "axes": True, "tensors": True, "body": True}
TENSOR_KEYS = {"axes": True, "role": True, "dtype": False, "like": False, "aliases": False}

MOST_RESULTS = 3
"""Values that a reduction delivers at the most (the components of ``welford``)."""

_MEANINGS = {
    "reducer": "Opens a reduction; `seed` is combined exactly once.",
    "update": "Each point of `over` contributes `value` once, where `where` holds.",
    "finalize": "Combines all contributions; `into` becomes readable, one value per row (a list: structured ops).",
    "reduce": "Short for reducer, update and finalize.",
    "let": "One value per row.",
    "tile": "One value per point of `over`, kept for later statements.",
    "store": "Writes an output; `over: []` writes one value per row.",
    "stage": "An effect boundary: nothing moves across it.",
    "loop": "Runs `body` as often as a dim or an integer param says; `index` names the trip's number, from 0.",
}


def _field(key: str, kind: FieldKind) -> dict[str, Any]:
    match kind:
        case "name" if key == "op":
            return {"enum": list(REDUCE_OPS)}
        case "name" if key == "dtype":
            return {"enum": ["float32", "int32"]}
        case "name" if key == "order":
            return {"enum": ["any", "strict"]}
        case "name":
            return {"$ref": "#/$defs/name"}
        case "names":
            return {"type": "array", "items": {"$ref": "#/$defs/name"}, "maxItems": DEFAULT_LIMITS.axes}
        case "results":
            several = {"type": "array", "items": {"$ref": "#/$defs/name"}, "minItems": 1, "maxItems": MOST_RESULTS}
            return {"anyOf": [{"$ref": "#/$defs/name"}, several]}
        case "expression":
            return {"$ref": "#/$defs/expression"}
        case "expressions":
            return {"type": "array", "items": {"$ref": "#/$defs/expression"}, "maxItems": DEFAULT_LIMITS.axes}
        case "body":
            return {"$ref": "#/$defs/body"}


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _statement(kind: str) -> dict[str, Any]:
    fields = STATEMENTS[kind]
    inner = _closed(
        {key: _field(key, what) for key, (what, _) in fields.items()},
        [key for key, (_, must) in fields.items() if must],
    )
    return {"title": kind, "description": _MEANINGS[kind], **_closed({kind: inner}, [kind])}


def _named(entry: dict[str, Any], most: int) -> dict[str, Any]:
    return {
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/name"},
        "additionalProperties": entry,
        "maxProperties": most,
    }


PROGRAM_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Program",
    "description": "What one row computes. Expressions are text over params, dims, row scalars, tiles and tensors.",
    **_closed(
        {
            "name": {"$ref": "#/$defs/name"},
            "params": _named({"type": "number"}, DEFAULT_LIMITS.params),
            "dims": {"type": "array", "items": {"$ref": "#/$defs/name"}, "maxItems": DEFAULT_LIMITS.dims},
            "axes": _named(
                _closed({"dim": {"$ref": "#/$defs/name"}, "kind": {"enum": ["row", "column"]}}, ["dim", "kind"]),
                DEFAULT_LIMITS.axes,
            ),
            "tensors": _named(
                _closed(
                    {
                        "axes": {"type": "array", "items": {"$ref": "#/$defs/name"}, "minItems": 1},
                        "role": {"enum": ["input", "output"]},
                        "dtype": {"enum": list(DTYPE_BYTES)},
                        "like": {"$ref": "#/$defs/name"},
                        "aliases": {"$ref": "#/$defs/name"},
                    },
                    [key for key, needed in TENSOR_KEYS.items() if needed],
                ),
                DEFAULT_LIMITS.tensors,
            ),
            "body": {"$ref": "#/$defs/body"},
        },
        [key for key, needed in DOCUMENT_KEYS.items() if needed],
    ),
    "$defs": {
        "name": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,63}$"},
        "expression": {"type": "string", "maxLength": DEFAULT_LIMITS.expression_chars, "examples": ["x * rstd"]},
        "body": {
            "type": "array",
            "items": {"oneOf": [_statement(kind) for kind in STATEMENTS]},
            "minItems": 1,
            "maxItems": DEFAULT_LIMITS.statements,
        },
    },
}
"""JSON Schema (2020-12) of a program document."""

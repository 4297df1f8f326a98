"""How operations document themselves: their errors, their examples, and the schemas that they refer to by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner_service.api import kinds
from tuner_service.api.kinds import ProblemKind
from tuner_service.api.problems import PROBLEM_MEDIA_TYPE

COMMON: tuple[ProblemKind, ...] = (
    kinds.INVALID_REQUEST,
    kinds.BAD_HTTP,
    kinds.CROSS_ORIGIN,
    kinds.HOST_NOT_ALLOWED,
    kinds.INTERNAL_ERROR,
)
"""What any operation may answer; an unknown query parameter is an invalid request anywhere."""


def problems(*expected: ProblemKind) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these kinds and the common ones; kinds of one status stand together."""
    by_status: dict[int | str, list[ProblemKind]] = {}
    for kind in dict.fromkeys((*expected, *COMMON)):
        by_status.setdefault(kind.status, []).append(kind)
    return {status: _response(rows) for status, rows in by_status.items()}


def json_body(schema: str, examples: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """OpenAPI of a request body that is read as raw JSON."""
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}, "examples": dict(examples)}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _response(rows: list[ProblemKind]) -> dict[str, Any]:
    examples = {
        kind.slug: {
            "summary": kind.title,
            "value": {
                "type": kind.type_path,
                "title": kind.title,
                "status": kind.status,
                "detail": kind.meaning.split(". ")[0],
                "instance": "urn:tuner:req_0123456789abcdef",
                "errors": [],
            },
        }
        for kind in rows
    }
    content = {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}
    return {"description": "; ".join(kind.title for kind in rows), "content": {PROBLEM_MEDIA_TYPE: content}}


_DEMO_SPACE = {
    "width": [16, 32],
    "input": ["reload", "cache"],
    "simd_scope": ["main", "all"],
    "nontemporal": [False],
}
PROGRAM_EXAMPLE: dict[str, Any] = {
    "name": "minmax_scale",
    "params": {"eps": 1e-6},
    "dims": ["rows", "cols"],
    "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
    },
    "body": [
        {"reduce": {"into": "low", "op": "min", "over": ["col"], "value": "x"}},
        {"reduce": {"into": "high", "op": "max", "over": ["col"], "value": "x"}},
        {"store": {"tensor": "y", "over": ["col"], "value": "(x - low) / (high - low + eps)"}},
    ],
}
"""No built-in kernel: each row scaled to 0…1."""
LOOKUP_EXAMPLES: dict[str, dict[str, Any]] = {
    "a program": {
        "summary": "The winner of a program that was tuned before",
        "value": {"program": PROGRAM_EXAMPLE, "dims": {"rows": 64, "cols": 256}, "device": "cpu"},
    },
}
REQUEST_EXAMPLES: dict[str, dict[str, Any]] = {
    "small": {
        "summary": "rms_norm at one small shape: eight candidates, done in seconds",
        "value": {
            "cases": [{"kernel": "rms_norm", "dims": {"rows": 64, "cols": 256}}],
            "device": "cpu",
            "space": _DEMO_SPACE,
        },
    },
    "two kernels": {
        "summary": "Two kernels, one with a param and dtypes said out loud; some candidates break the budget",
        "value": {
            "cases": [
                {
                    "kernel": "rms_norm",
                    "params": {"eps": 1e-6},
                    "dims": {"rows": 64, "cols": 256},
                    "dtypes": {"x": "float32"},
                },
                {"kernel": "softmax", "dims": {"rows": 23, "cols": 769}},
            ],
            "device": "cpu",
            "space": {**_DEMO_SPACE, "materialize": ["output", "private"]},
            "private_budget_scalars": 32,
            "baselines": ["torch_eager"],
            "labels": {"team": "kernels"},
        },
    },
    "a program of your own": {
        "summary": "A program that is no built-in kernel: each row scaled to 0…1",
        "value": {
            "cases": [{"program": PROGRAM_EXAMPLE, "dims": {"rows": 64, "cols": 256}, "params": {"eps": 1e-5}}],
            "device": "cpu",
            "space": _DEMO_SPACE,
        },
    },
    "whole default space": {
        "summary": "softmax over the device's whole default space",
        "value": {"cases": [{"kernel": "softmax", "dims": {"rows": 64, "cols": 256}}], "device": "cpu"},
    },
}

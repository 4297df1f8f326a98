"""The OpenAPI document: complete, and with examples that run as they stand against this very service."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from search.program.schema import PROGRAM_SCHEMA
from tuner_service.api import schemas, schemas_catalogs, schemas_operations, schemas_retention
from tuner_service.api.context import Context
from tuner_service.api.documented import COMMON, PROGRAM_EXAMPLE
from tuner_service.api.kinds import KINDS
from tuner_service.api.live_examples import Example, live_examples

DESCRIPTION = """
Enumerates every way to run a kernel in a finite joint space, rejects what breaks the private budget or the rules,
compiles and measures the rest on an attached device, checks every output against a float64 oracle, and keeps every
rejected candidate with its reason.

Try it here: **POST /v1/jobs** with the first example, then **GET /v1/jobs/{job_id}** (the examples on this page name
what is newest; reload it), its **trials** and their **source**, and **GET /v1/winners** once the job has succeeded.
An operation that needs what does not exist yet says so.

Lists answer `{"items", "next", "total"}`: give `next` as `cursor` to read on. Times are seconds, sizes bytes or
scalars, timestamps RFC 3339 UTC. Errors are `application/problem+json` (RFC 9457); each `type` is a page:
"""
TAGS = [
    {"name": "jobs", "description": "Start, follow and cancel tuning jobs."},
    {"name": "trials", "description": "The trial history, every rejection included."},
    {"name": "plans", "description": "Dry runs: what a job would try, and what it would reject."},
    {"name": "winners", "description": "Exact lookup of winners."},
    {"name": "catalogs", "description": "Freeze winners, accept them in a replay, promote them, serve them."},
    {"name": "kernels", "description": "Built-in kernels."},
    {"name": "devices", "description": "Attached devices."},
    {"name": "system", "description": "Health, readiness, retention, and pages about problems."},
]
_REFERENCED = (
    *schemas.REFERENCED,
    *schemas_catalogs.REFERENCED,
    *schemas_operations.REFERENCED,
    *schemas_retention.REFERENCED,
)
_SCHEMA_PREFIX = "#/components/schemas/{model}"


def base_document(app: FastAPI, *, version: str) -> dict[str, Any]:
    """The document without live examples."""
    document = get_openapi(title="Tuner", version=version, description=_description(), routes=app.routes, tags=TAGS)
    _, definitions = models_json_schema(
        [(model, "validation") for model in _REFERENCED],
        ref_template=_SCHEMA_PREFIX,
    )
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(definitions["$defs"])
    components.update(_program_schemas())
    for name in ("CaseRequest", "LookupRequest"):
        components[name]["properties"]["program"] = {
            "anyOf": [{"$ref": _SCHEMA_PREFIX.format(model="Program")}, {"type": "null"}],
            "description": "A program document instead of a kernel name.",
        }
    for operation in operations(document):
        missing = [str(kind.status) for kind in COMMON if str(kind.status) not in operation["responses"]]
        assert not missing, f"{operation['operationId']} does not document {missing}"
        for parameter in operation.get("parameters", ()):
            examples = parameter["schema"].get("examples")
            if examples:
                parameter["example"] = examples[0]
    return document


def _description() -> str:
    rows = (f"[{kind.slug}]({kind.type_path}) ({kind.status})" for kind in KINDS.values())
    return f"{DESCRIPTION.strip()} {', '.join(rows)}."


def _program_schemas() -> dict[str, Any]:
    """The program's JSON Schema with its definitions as components of their own: a document has one place for them."""
    text = re.sub(r'"#/\$defs/(\w+)"', r'"#/components/schemas/Program_\1"', json.dumps(PROGRAM_SCHEMA))
    program: dict[str, Any] = json.loads(text)
    parts = {f"Program_{name}": schema for name, schema in program.pop("$defs", {}).items()}
    program.pop("$schema", None)
    program["description"] += " Lengths are the default limits; the settings of a service may be others."
    program["examples"] = [PROGRAM_EXAMPLE]
    return {"Program": program, **parts}


def live_document(base: dict[str, Any], context: Context) -> dict[str, Any]:
    """The document whose examples name what exists: the newest job, a trial with a source, a catalog, a winner…

    An operation that needs what does not exist yet says so in its description.
    """
    document = copy.deepcopy(base)
    for (method, path), example in live_examples(context).items():
        _fill_in(document["paths"][path][method], example)
    return document


def _fill_in(operation: dict[str, Any], example: Example) -> None:
    parameters = {parameter["name"]: parameter for parameter in operation.get("parameters", ())}
    for name, value in example.values.items():
        parameters[name].pop("example", None)
        parameters[name]["schema"].pop("examples", None)
        if value:
            parameters[name]["example"] = value
            parameters[name]["schema"]["examples"] = [value]
    if example.bodies is not None:
        operation["requestBody"]["content"]["application/json"]["examples"] = example.bodies
    if example.missing is not None:
        operation["description"] += f"\n\n**Not yet:** {example.missing}"


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation of an OpenAPI document."""
    methods = ("get", "put", "post", "delete", "patch", "head", "options")
    return [item[method] for item in document["paths"].values() for method in methods if method in item]

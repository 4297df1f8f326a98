"""Query strings are checked like bodies: an unknown, repeated or unprintable parameter is refused, not ignored."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from search.errors import InvalidInput, Problem


def known_parameters(request: Request) -> None:
    """Raises InvalidInput naming every query parameter that the operation does not have."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    allowed = sorted(_query_names(route.dependant))
    problems = []
    for name in dict.fromkeys(request.query_params.keys()):
        values = request.query_params.getlist(name)
        message = None
        if name not in allowed:
            message = "this operation has no such query parameter"
        elif len(values) > 1:
            message = "this query parameter must be given once"
        elif "\0" in values[0]:
            message = "a query parameter must not hold a NUL character"
        if message is not None:
            problems.append(Problem(field=f"/query/{name}", value=values[0], message=message, allowed=allowed))
    if problems:
        raise InvalidInput(problems)


def _query_names(dependant: Dependant) -> set[str]:
    names = {field.alias for field in dependant.query_params}
    return names.union(*(_query_names(inner) for inner in dependant.dependencies))


def parse_pairs(text: str, *, name: str) -> dict[str, str]:
    """``rows:1024,cols:4096`` as a dict of strings. Raises InvalidInput naming the query parameter ``name``."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, colon, value = part.partition(":")
        if not colon or not key or not value or key in pairs:
            message = "each name must stand once, as name:value" if key in pairs else f"{part!r} is not name:value"
            problem = Problem(field=f"/query/{name}", value=text, message=message, allowed="name:value,name:value")
            raise InvalidInput([problem])
        pairs[key] = value
    return pairs

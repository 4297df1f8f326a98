"""The space of a searched case: how many candidates its lists make, and that every trial of it is one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from catalogs.auditing.book import Book, same, shown
from catalogs.auditing.shapes import SEARCH_SPACE
from catalogs.canonical import canonical_json

_WIDTH = "width"
_LANES = "local_lanes"
_ALGORITHM = "algorithm"


def check_space(case: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], where: str, book: Book) -> None:
    """Count the candidates of a case's lists anew, and look for every trial of the space among them."""
    space = case["space"]
    for name, values in space.items():
        if len({canonical_json(value) for value in values}) != len(values):
            book.find(where, "a value is listed twice", field=f"space.{name}")
    for name in case["inert_knobs"]:
        if len(space.get(name, ())) != 1:
            book.find(where, f"{shown(name)} is no knob with one value", field="inert_knobs")
    if not book.fits(where, {"space": space}, SEARCH_SPACE):
        return
    size = _size(space)
    if case["enumerated"] != size:
        message = f"{case['enumerated']} candidates were enumerated, but the lists of the space make {size}"
        book.find(where, message, field="enumerated")
    book.checked["search spaces recounted"] += 1
    for trial in trials:
        if trial["in_space"] and not _holds(space, trial["candidate"]):
            book.find(f"{where} trial {shown(trial['id'])}", "no candidate of the space", field="candidate")


def _size(space: Mapping[str, list[Any]]) -> int:
    others = math.prod(len(values) for name, values in space.items() if name not in (_WIDTH, _LANES))
    if _LANES not in space:
        return others * len(space[_WIDTH])
    return others * sum(
        len({canonical_json(_lanes(value, width)) for value in space[_LANES]}) for width in space[_WIDTH]
    )


def _lanes(value: Any, width: Any) -> Any:
    """The lanes that share a row: ``"width"`` says all of them, which an equal number says too."""
    return width if value == _WIDTH else value


def _holds(space: Mapping[str, list[Any]], candidate: Mapping[str, Any]) -> bool:
    mapping = candidate.get("mapping")
    if not isinstance(mapping, dict):
        return False
    knobs = {**{name: value for name, value in candidate.items() if name != "mapping"}, **mapping}
    if _ALGORITHM in space:
        # a candidate computes the program as written unless it says otherwise
        knobs.setdefault(_ALGORITHM, "written")
    if knobs.keys() != space.keys():
        return False
    listed = {name: values for name, values in space.items() if name != _LANES}
    if _LANES in space:
        listed[_LANES] = [_lanes(value, knobs[_WIDTH]) for value in space[_LANES]]
    return all(any(same(value, knobs[name]) for value in values) for name, values in listed.items())

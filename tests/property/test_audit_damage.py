"""Any member of a bundle edited or removed is found, but for words that nothing depends on; nothing is ever raised."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "unit" / "catalogs"))

import bundle_factory as make

from catalogs.audit import Report, audit, audit_search

SOME = settings(max_examples=40, deadline=None)
MANY = settings(max_examples=80, deadline=None)
BUNDLE = make.bundle(cases=2)
REJECTED = make.bundle(cases=2, times={"R": 0.9}, incumbent=False)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
CODES = st.sampled_from([{}, {"R": "C"}, {"C": "R"}, {"D": "R", "I": "C"}, {"D": "C", "R": "C", "I": "C"}, {"I": "D"}])

WORDS = (
    r"id|statements\[\d+\]|results\.reasons\[\d+\]|records\[\d+\]\.id",
    r"cases\[\d+\]\.arms\.T\..*",
    r"records\[\d+\]\.checks\.inputs\[\d+\]\.max_\w+",
    r"records\[\d+\]\.(started|finished)_monotonic_seconds",
)
"""What stands for itself: another word, an error within its bounds, nanoseconds of a clock contradict nothing in the
bundle: its sha256 alone covers them."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything that is no container."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, (*path, place))
    else:
        yield path


def every(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything, the bundle itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*path, name)
        yield from every(item, (*path, name))


def spelled(path: tuple[Any, ...]) -> str:
    """A path as it reads."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def parent(bundle: Any, path: tuple[Any, ...]) -> Any:
    """What holds the last step of a path."""
    for step in path[:-1]:
        bundle = bundle[step]
    return bundle


def other(value: Any, by: int) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + by
    if isinstance(value, float):
        return value * (1 + 1e-9 * by) if value else 1e-9 * by
    if isinstance(value, str):
        return make.sha(value) if re.fullmatch("[0-9a-f]{64}", value) else f"{value}x"
    return by


PATHS = sorted((path for path in leaves(BUNDLE) if path != ("sha256",)), key=spelled)
TESTED = [path for path in PATHS if not any(re.fullmatch(words, spelled(path)) for words in WORDS)]


def refused(report: Report) -> None:
    """There is a finding, and it is not that the auditor stumbled."""
    told = "\n".join(report.lines())
    assert not report.ok
    assert not any(finding.where == "auditor" for finding in report.findings), told


@SOME
@given(
    cases=st.integers(1, 5),
    rounds=st.sampled_from([4, 8]),
    incumbent=st.booleans(),
    torch=st.booleans(),
    same=CODES,
    noise=st.sampled_from([0.0, 0.001, 0.05]),
    times=st.fixed_dictionaries({arm: st.floats(0.5, 2) for arm in "RCDITA"}),
    seed=st.integers(0, 9),
)
def test_every_valid_bundle_passes(same: dict[str, str], incumbent: bool, **how: Any) -> None:
    assume(incumbent or "I" not in same)
    report = audit(make.bundle(same=same, incumbent=incumbent, **how))
    assert report.findings == ()


@MANY
@given(path=st.sampled_from(TESTED), by=st.integers(1, 3))
def test_any_edited_value_is_found(path: tuple[Any, ...], by: int) -> None:
    """However small: the attacker works out the bundle's sha256, and leaves the rest."""
    bundle = copy.deepcopy(BUNDLE)
    holder = parent(bundle, path)
    holder[path[-1]] = other(holder[path[-1]], by)
    refused(audit(make.sealed(bundle)))


REMOVABLE = [
    path
    for path in sorted(every(BUNDLE), key=spelled)
    if path != ("sha256",)
    and not re.fullmatch(
        r"statements\[\d+\]|cases\[\d+\]\.arms\.T\.versions\.\w+|results\.cases\[\d+\]\.spread"
        r"|records\[\d+\]\.checks\.inputs\[\d+\]\.(max_tolerance|failures|first_failure|patterns)",
        spelled(path),
    )
]


@MANY
@given(path=st.sampled_from(REMOVABLE))
def test_anything_removed_is_found(path: tuple[Any, ...]) -> None:
    bundle = copy.deepcopy(BUNDLE)
    del parent(bundle, path)[path[-1]]
    refused(audit(make.sealed(bundle)))


@SOME
@given(path=st.sampled_from(sorted(every(BUNDLE), key=spelled)))
def test_any_change_is_found_by_the_sha256(path: tuple[Any, ...]) -> None:
    bundle = copy.deepcopy(BUNDLE)
    del parent(bundle, path)[path[-1]]
    refused(audit(bundle))


@MANY
@given(path=st.sampled_from(sorted(every(REJECTED), key=spelled)), value=ANY_JSON, extra=st.booleans())
def test_arbitrary_json_inside_a_bundle_raises_nothing(path: tuple[Any, ...], value: Any, extra: bool) -> None:
    bundle = copy.deepcopy(REJECTED)
    holder = parent(bundle, path)
    if extra and isinstance(holder, list):
        holder.insert(path[-1], value)
    else:
        holder[path[-1]] = value
    for report in (audit(make.sealed(bundle)), *(audit_search(search) for search in _searches(bundle))):
        assert not any(finding.where == "auditor" for finding in report.findings), "\n".join(report.lines())


def _searches(bundle: Any) -> list[Any]:
    return bundle["search"] if isinstance(bundle["search"], list) else [bundle["search"]]


@MANY
@given(document=ANY_JSON | st.dictionaries(st.sampled_from(sorted(BUNDLE)), ANY_JSON))
def test_arbitrary_json_is_refused(document: Any) -> None:
    for how in (audit, audit_search):
        refused(how(document))
        refused(how(make.canonical(document)))


@SOME
@given(data=st.binary(max_size=64))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    refused(audit(data))


@SOME
@given(data=st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    """Cut anywhere, or with one byte changed: that may only be another spelling of the same document (1E-05)."""
    whole = make.canonical(BUNDLE)
    at = data.draw(st.integers(0, len(whole) - 1))
    refused(audit(whole[:at]))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    report = audit(changed)
    if not report.ok:
        refused(report)
    else:
        assert json.loads(changed) == BUNDLE

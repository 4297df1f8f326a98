"""Search bundles: no trial has vanished from the search that a winner came from, and nothing measured was unchecked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.auditing.arithmetic import middle
from catalogs.auditing.book import Book, same, shown
from catalogs.auditing.shapes import SEARCH, SEARCH_CASE, SEARCH_TRIAL
from catalogs.auditing.spaces import check_space
from catalogs.canonical import canonical_json


@dataclass(frozen=True, kw_only=True)
class Searched:
    """One trial of a search bundle, and the case that it was a trial of."""

    job_id: str
    case: Mapping[str, Any]
    trial: Mapping[str, Any]
    default: Mapping[str, Any] | None
    """The untuned default of the same case."""


def read_search(document: Any, where: str, book: Book) -> dict[str, Searched]:
    """Trial id → trial of one search bundle; what is wrong with it is written down."""
    if not book.fits(where, document, SEARCH):
        return {}
    book.checked["search jobs"] += 1
    found: dict[str, Searched] = {}
    for position, case in enumerate(document["cases"]):
        at = f"{where}.cases[{position}]"
        if not book.fits(at, case, SEARCH_CASE):
            continue
        at = f"{at} ({shown(case['kernel'])})"
        trials = _trials(case, at, found, book)
        counts = Counter(trial["outcome"] for trial in trials if trial["in_space"])
        ended = counts["measured"] + counts["rejected"]
        if case["enumerated"] != ended:
            book.find(
                at,
                f"{case['enumerated']} candidates were enumerated, but {counts['measured']} measured and "
                f"{counts['rejected']} rejected trials of the space are recorded: one was removed or added",
                field="enumerated",
            )
        check_space(case, trials, at, book)
        defaults = [trial for trial in trials if trial["is_default"]]
        if len(defaults) != 1:
            book.find(at, f"one trial is the untuned default, got {len(defaults)}", field="trials")
        default = defaults[0] if defaults else None
        for trial in trials:
            found[trial["id"]] = Searched(job_id=document["job_id"], case=case, trial=trial, default=default)
    return found


def _trials(case: Mapping[str, Any], where: str, found: Mapping[str, Searched], book: Book) -> list[Mapping[str, Any]]:
    fit: dict[str, Mapping[str, Any]] = {}
    for position, trial in enumerate(case["trials"]):
        at = f"{where} trials[{position}]"
        if isinstance(trial, dict) and isinstance(trial.get("id"), str):
            at = f"{at} ({shown(trial['id'])})"
        if not book.fits(at, trial, SEARCH_TRIAL):
            continue
        if trial["id"] in found or trial["id"] in fit:
            book.find(at, "a trial of this id is there already: it is recorded twice", field="id")
            continue
        fit[trial["id"]] = trial
        book.checked["search trials"] += 1
        _check_outcome(trial, at, book)
    _check_candidates(fit, where, book)
    for trial in fit.values():
        _check_inherited(trial, fit, f"{where} trial {shown(trial['id'])}", book)
    return list(fit.values())


def _check_outcome(trial: Mapping[str, Any], where: str, book: Book) -> None:
    samples, median = trial["samples_seconds"], trial["median_seconds"]
    if samples:
        book.checked["search samples"] += len(samples)
        book.equal(where, "median_seconds", median, middle(samples), "the median of its samples")
    elif median is not None:
        book.find(where, f"{shown(median)} without samples", field="median_seconds")
    if trial["outcome"] == "rejected":
        book.checked["search rejections"] += 1
        for field in ("stage", "reason"):
            if trial[field] is None:
                book.find(where, f"a rejected trial has a {field}", field=field)
        return
    for field in ("stage", "reason"):
        if trial[field] is not None:
            book.find(where, f"a measured trial has no {field}, got {shown(trial[field])}", field=field)
    if not samples:
        book.find(where, "a measured trial has samples", field="samples_seconds")
    if trial["checks_passed"] is not True:
        book.find(where, "a measured trial has passed its checks", field="checks_passed")
    if not trial["elements_checked"]:
        book.find(where, "a measured trial has elements that were checked", field="elements_checked")


def _check_candidates(trials: Mapping[str, Mapping[str, Any]], where: str, book: Book) -> None:
    """No candidate of the space stands in two trials: that would hide one that was left out."""
    seen: dict[bytes, str] = {}
    for name, trial in trials.items():
        if trial["in_space"]:
            first = seen.setdefault(canonical_json(trial["candidate"]), name)
            if first != name:
                book.find(f"{where} trial {shown(name)}", f"the candidate of trial {shown(first)}", field="candidate")


def _check_inherited(trial: Mapping[str, Any], trials: Mapping[str, Any], where: str, book: Book) -> None:
    source = trial["same_code_as"]
    if source is None:
        return
    timed = trials.get(source)
    if timed is None or source == trial["id"]:
        book.find(where, f"{shown(source)} is no other trial of the case", field="same_code_as")
    elif trial["outcome"] == "measured" and (timed["outcome"] != "measured" or timed["same_code_as"] is not None):
        book.find(where, f"trial {shown(source)} was not timed itself", field="same_code_as")
    elif timed["outcome"] == "measured" and not same(timed["samples_seconds"], trial["samples_seconds"]):
        book.find(where, f"not the samples of trial {shown(source)}, whose timing it has", field="samples_seconds")

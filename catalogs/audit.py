"""Audit the evidence of an acceptance: ``python -m catalogs.audit BUNDLE [--json]``. Standard library only.

Every median, ratio, class, margin, state and verdict is worked out anew from the raw samples, by arithmetic of its own;
coverage, order and balance, clocks, digests, arms against frozen entries, searches and correctness records are checked.

What it cannot see: the arrays, which a bundle does not hold (it checks that correctness was recorded, for every record,
over as many elements as in the search); a bundle forged consistently, with samples invented, or the last rounds, every
record of torch or the incumbent left out, and every digest and figure worked out from the rest; and an edit of what
nothing else depends on, once the digests over it were worked out again: words and ids, errors within their bounds, a
sample beside the median, and the median and samples_sha256 of an entry (samples of finals are in the ledger, not here).
A search is bound by the entries that were frozen from it: a trial that was removed or edited is found unless its
catalogs were digested anew as well; a case of which nothing was frozen is bound by nothing. Who must exclude that
compares ``sha256``, and the catalogs' digests, with those that the service kept, or runs the replay.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from catalogs.auditing.book import CHECKS_RECORDED_CORRECTNESS, Book, Finding, Report, same, shown
from catalogs.auditing.builds import check_builds
from catalogs.auditing.cases import check_entries, read_cases
from catalogs.auditing.entries import FrozenSet, check_scope, read_catalogs
from catalogs.auditing.order import check_clocks, check_order
from catalogs.auditing.origins import check_elements, check_origins
from catalogs.auditing.reading import MAX_BYTES, check_digest, device_digest, digest, read
from catalogs.auditing.records import check_inputs, check_record, check_unique, read_records
from catalogs.auditing.results import check_results
from catalogs.auditing.searches import Searched, read_search
from catalogs.auditing.shapes import (
    BUNDLE,
    MARGIN_RULE,
    METRICS,
    PROTOCOL,
    ROUNDS_MULTIPLE,
    SCHEMA_VERSION,
    SCOPE,
)

__all__ = ["CHECKS_RECORDED_CORRECTNESS", "Finding", "Report", "audit", "audit_search", "main"]

_USAGE = "usage: python -m catalogs.audit BUNDLE [--json]"


def audit(bundle: Mapping[str, Any] | bytes) -> Report:
    """Audit an acceptance's evidence (docs/reference/evidence.md), a document or its JSON bytes. Never raises."""
    return _guarded(_audit, bundle)


def audit_search(bundle: Mapping[str, Any] | bytes) -> Report:
    """Audit a search bundle: enumerated = measured + rejected, every rejection explained. Never raises."""
    return _guarded(_audit_search, bundle)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 when nothing was found, 1 with each finding, 2 when there is no such file or option."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    paths = [word for word in words if word != "--json"]
    if paths in (["-h"], ["--help"]):
        print(f"{_USAGE}\n\n{__doc__}")
        return 0
    if len(paths) != 1 or paths[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        with Path(paths[0]).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        print(f"{paths[0]}: {error.strerror or error}", file=sys.stderr)
        return 2
    report = _guarded(_audit_either, data)
    text = json.dumps(report.document(), indent=2) if as_json else "\n".join(report.lines())
    encoding = sys.stdout.encoding or "utf-8"  # a bundle's words may be more than a terminal can show
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0 if report.ok else 1


def _guarded(how: Callable[[object, Book], None], bundle: object) -> Report:
    book = Book()
    try:
        how(bundle, book)
    except Exception as error:  # a bundle that an auditor stumbles over is refused, never waved through
        book.find("auditor", f"stumbled over the bundle ({type(error).__name__}: {error})")
    return book.report()


def _audit_either(bundle: object, book: Book) -> None:
    document = read(bundle, book)
    if document is not None:
        (_search if document.keys() == {"job_id", "cases"} else _acceptance)(document, book)


def _audit(bundle: object, book: Book) -> None:
    document = read(bundle, book)
    if document is not None:
        _acceptance(document, book)


def _audit_search(bundle: object, book: Book) -> None:
    document = read(bundle, book)
    if document is not None:
        _search(document, book)


def _search(document: Mapping[str, Any], book: Book) -> None:
    book.subject = f"search bundle {shown(document.get('job_id'))}"
    read_search(document, "search", book)


def _acceptance(document: Mapping[str, Any], book: Book) -> None:
    book.subject = f"acceptance {shown(document.get('id'))}"
    version = document.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        message = f"{shown(version)} is newer than this auditor reads ({SCHEMA_VERSION})"
        book.find("bundle", message, field="schema_version")
        return
    check_digest(document, "sha256", "bundle", book)
    if not book.fits("bundle", document, BUNDLE):
        return  # without its outermost parts nothing can be set against anything
    book.fits("protocol", document["protocol"], PROTOCOL)
    book.fits("margin_rule", document["margin_rule"], MARGIN_RULE)
    book.equal("bundle", "metrics", document["metrics"], list(METRICS), "the metrics of an acceptance")
    rounds = document["rounds"]
    if rounds % ROUNDS_MULTIPLE:
        book.find("bundle", f"{shown(rounds)} is no multiple of {ROUNDS_MULTIPLE}", field="rounds")
    if rounds > len(document["records"]):
        book.find("bundle", f"{shown(rounds)} rounds cannot have {len(document['records'])} records", field="rounds")
        return
    scope = document["scope"] if _check_scope(document["scope"], book) else None
    frozen = read_catalogs(document["catalogs"], book)
    if scope is not None:
        check_scope(frozen, scope, book)
    searched = _searches(document["search"], frozen, book)
    check_origins(frozen, searched, book)
    cases = read_cases(document["cases"], book)
    check_entries(cases, frozen, searched, book)
    records = read_records(document["records"], book)
    for record in records:
        case = cases.get(record.document["case"])
        if record.whole and case is not None:
            check_record(record, case, scope, book)
    check_unique(records, book)
    check_inputs(records, cases, book)
    check_elements(records, cases, searched, book)
    every_case = len(cases) == len(document["cases"])
    check_builds(document["builds"], records, cases, rounds, book, complete=every_case)
    check_order(records, cases, rounds, book, complete=every_case)
    check_clocks(records, book)
    book.subject += f", verdict {shown(document['results'].get('verdict'))}"
    ran_on = scope["toolchain_fingerprint"] if scope is not None else None
    canary = ran_on is not None and frozen.candidate is not None and frozen.candidate.toolchain != ran_on
    check_results(document["results"], cases, records, rounds, book, cases_stated=len(document["cases"]), canary=canary)


def _check_scope(scope: Any, book: Book) -> bool:
    if not book.fits("scope", scope, SCOPE):
        return False
    device = scope["device"]
    actual = device_digest(device["kind"], device["identity"])
    book.equal("scope", "device.digest", device["digest"], actual, "that of kind and identity")
    fingerprint = digest(scope["toolchain"])
    book.equal("scope", "toolchain_fingerprint", scope["toolchain_fingerprint"], fingerprint, "that of the toolchain")
    return True


def _searches(documents: Sequence[Any], frozen: FrozenSet, book: Book) -> dict[str, Searched]:
    """Trial id → trial over all search bundles, which are one for each job that the catalogs name."""
    found: dict[str, Searched] = {}
    jobs: dict[str, int] = {}
    for position, document in enumerate(documents):
        where = f"search[{position}]"
        for trial, searched in read_search(document, where, book).items():
            if trial in found and not same(found[trial].job_id, searched.job_id):
                book.find(where, f"trial {shown(trial)} is in job {shown(found[trial].job_id)} too")
            found[trial] = searched
        job = document.get("job_id") if isinstance(document, dict) else None
        if isinstance(job, str):
            first = jobs.setdefault(job, position)
            if first != position:
                book.find(where, f"the job of search[{first}]: a search bundle is there twice", field="job_id")
    known = {}
    for name in ("candidate", "reference", "incumbent"):
        catalog = getattr(frozen, name)
        for entry in catalog.entries.values() if catalog is not None else ():
            known[entry.job_id] = name
            if name != "incumbent" and entry.job_id not in jobs:
                book.find("search", f"no bundle of job {shown(entry.job_id)}, which catalogs.{name} was frozen from")
    for job in jobs.keys() - known.keys():
        book.find("search", f"no catalog was frozen from job {shown(job)}")
    return found


if __name__ == "__main__":
    sys.exit(main())

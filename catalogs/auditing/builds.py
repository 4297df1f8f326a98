"""The builds of an acceptance: every kernel arm of every case anew in every round, and each time what was frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from catalogs.auditing.book import Book, shown
from catalogs.auditing.cases import AuditedCase
from catalogs.auditing.records import AuditedRecord
from catalogs.auditing.shapes import BUILD, KERNEL_ARMS

_Place = tuple[int, int, str]
_ORDER = ("C", "R", "D", "I")


def check_builds(
    documents: list[Any],
    records: Sequence[AuditedRecord],
    cases: Mapping[int, AuditedCase],
    rounds: int,
    book: Book,
    *,
    complete: bool,
) -> None:
    """That the builds are those of every round, case and kernel arm, and that what was timed is what was built.

    An arm whose machine code is another's is not timed, and is built all the same. ``complete``: every case of the
    bundle could be read.
    """
    builds: dict[_Place, str] = {}
    processes: dict[str, tuple[int, str]] = {}
    listed: list[tuple[int, int, int]] = []
    for position, document in enumerate(documents):
        where = f"builds[{position}]"
        if not book.fits(where, document, BUILD):
            continue
        number, index, arm = place = (document["round"], document["case"], document["arm"])
        name = f"{where} (round {number}, case {index}, arm {arm})"
        case = cases.get(index)
        if number >= rounds or (complete and (case is None or case.arms[arm] is None)):
            book.find(name, "there is no such round, case or arm")
            continue
        if place in builds:
            book.find(name, "the round, case and arm of another build: it is there twice")
            continue
        process = builds[place] = document["build_process"]
        listed.append((number, index, _ORDER.index(arm)))
        if case is not None and case.arms[arm] is not None:
            for field in ("source_sha256", "artifact_sha256", "plan"):
                book.equal(name, field, document[field], case.arms[arm][field], f"that of arm {arm}")
        first, other = processes.setdefault(process, (number, name))
        if first != number:
            book.find(name, f"{shown(process)} also built {other}: every round builds anew", field="build_process")
        book.checked["builds"] += 1
    if listed != sorted(listed):
        book.find("builds", "not in the order of round, case and arm (C, R, D, I)")
    _check_coverage(builds, cases, rounds, book)
    _check_timed(builds, records, book)


def _check_coverage(builds: Mapping[_Place, str], cases: Mapping[int, AuditedCase], rounds: int, book: Book) -> None:
    for number in range(rounds):
        for case in cases.values():
            for arm in KERNEL_ARMS:
                if case.arms[arm] is not None and (number, case.index, arm) not in builds:
                    message = f"no build of {case.name}, arm {arm}: every round builds every arm anew"
                    book.find(f"round {number}", message, field="builds")


def _check_timed(builds: Mapping[_Place, str], records: Sequence[AuditedRecord], book: Book) -> None:
    """That a record's process is that of its arm's build; the control is the candidate's build once more."""
    for record in records:
        number, index, arm = record.place
        process = builds.get((number, index, "C" if arm == "A" else arm))
        if record.whole and arm != "T" and process is not None:
            stated = record.document["build_process"]
            book.equal(record.name, "build_process", stated, process, "that of its arm's build in this round")

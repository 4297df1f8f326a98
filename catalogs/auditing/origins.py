"""Where entries and records come from: the search that an entry names by digest, as the bundle holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catalogs.auditing.book import Book, shown
from catalogs.auditing.cases import AuditedCase
from catalogs.auditing.entries import FrozenSet, entry_name
from catalogs.auditing.reading import digest
from catalogs.auditing.records import AuditedRecord
from catalogs.auditing.searches import Searched
from catalogs.format import Entry

_MEMBER = "search_sha256"


def check_origins(frozen: FrozenSet, searched: Mapping[str, Searched], book: Book) -> None:
    """That the search of every entry is the one that it was frozen from: no trial was removed, added or edited since.

    An incumbent may come from a job that the bundle does not hold, and from a time when entries did not name a search.
    """
    digests: dict[int, str] = {}
    for name in ("candidate", "reference", "incumbent"):
        catalog = getattr(frozen, name)
        for entry in catalog.entries.values() if catalog is not None else ():
            where = f"catalogs.{name} entry {entry_name(entry)}"
            stated = entry.extra.get(_MEMBER)
            if stated is None and name != "incumbent":
                book.find(where, "the entry does not name the search that it came from: freeze it anew", field=_MEMBER)
            found = searched.get(entry.trial_id)
            if found is None:  # of winner and reference this was found with the arms
                continue
            book.equal(where, "job_id", entry.job_id, found.job_id, "the job of its trial in the search bundle")
            _check_ties(entry, found, searched, where, book)
            if stated is None:
                continue
            case = id(found.case)
            actual = digests[case] = digests.get(case) or digest(found.case)
            if stated != actual:
                message = (
                    f"{shown(stated)} is not the sha256 of its case in the search bundle, {actual}: that was edited"
                )
                book.find(where, message, field=_MEMBER)
            book.checked["searches bound to entries"] += 1


def check_elements(
    records: Sequence[AuditedRecord],
    cases: Mapping[int, AuditedCase],
    searched: Mapping[str, Searched],
    book: Book,
) -> None:
    """That a record was checked over as many elements as the trial that its arm is, all input sets together."""
    for record in records:
        _, index, name = record.place
        case = cases.get(index)
        arm = case.arms[name] if case is not None else None
        if not record.whole or arm is None or name == "T":
            continue
        found = searched.get(arm["trial_id"])
        if found is not None and found.trial["elements_checked"]:
            stated = sum(given["elements_checked"] for given in record.document["checks"]["inputs"])
            wanted = found.trial["elements_checked"]
            book.equal(record.name, "checks.inputs", stated, wanted, "the elements that its trial was checked over")


def _check_ties(entry: Entry, found: Searched, searched: Mapping[str, Searched], where: str, book: Book) -> None:
    for trial in entry.tie_set:
        other = searched.get(trial)
        if other is None or other.case is not found.case or other.trial["outcome"] != "measured":
            book.find(where, f"{shown(trial)} is no measured trial of its search", field="tie_set")

"""Where an entry came from: the search that it names by digest, as the bundle holds it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from catalogs.auditing.book import Book, shown
from catalogs.auditing.entries import FrozenSet, entry_name
from catalogs.auditing.reading import digest
from catalogs.auditing.searches import Searched

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

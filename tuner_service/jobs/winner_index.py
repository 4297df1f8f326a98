"""The winners of all jobs by key, so that a lookup reads the cases that it answers with and no others.

What is kept are keys: of each the newest job. Entries, with their trials and samples, are made when they are answered.
A key has the digest that the program had when it was tuned. A kernel that means something else by now has other keys,
which old winners do not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from catalogs import ANY_TOOLCHAIN, Entry, Hit, LookupKey, Miss, NearMiss, Query
from catalogs.lookup import differences, dims_distance, distinct, explained
from search.selection.freeze import entry_of, settled_key
from tuner_service.db.engine import Database
from tuner_service.db.queries import winners

_JOBS_AT_ONCE = 500
_ENTRIES_KEPT = 1024


@dataclass(frozen=True, kw_only=True)
class _Keyed:
    """Where the winner of a key is."""

    kernel: str
    params: Mapping[str, float | int]
    key: LookupKey
    job_id: str
    case_id: str


class WinnerIndex:
    """Exact lookup among the winners of jobs that have succeeded. Thread-safe.

    Jobs that have succeeded do not change, so each is read once; whether there are new ones is asked at every lookup,
    and where some were pruned, all others are read again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: set[str] = set()
        self._mark: tuple[int, int] | None = None
        self._newest: dict[str, dict[str, dict[str, _Keyed]]] = {}
        """Kernel → digest of the key but for the toolchain → toolchain → the newest job's winner."""
        self._entries: dict[str, Entry] = {}

    def lookup(self, database: Database, query: Query) -> Hit | Miss:
        """The newest job's entry whose key equals the asked one, else a Miss that names the nearest ones.

        DatabaseProblem when the ledger cannot be read.
        """
        try:
            return self._lookup(database, query)
        except KeyError:  # a job was pruned since the index was read
            with self._lock:
                self._mark = None
        return self._lookup(database, query)

    def _lookup(self, database: Database, query: Query) -> Hit | Miss:
        with self._lock:
            with database.read() as session:
                self._refresh(session)
            groups = self._newest.get(query.kernel, {})
            same = list(groups.get(_without_toolchain(query.key), {}).values())
        # A session that is opened now sees every case of the index; an older one may not see what others brought in.
        with database.read() as session:
            return self._answer(session, query, groups, same)

    def _answer(
        self, session: Session, query: Query, groups: Mapping[str, Mapping[str, _Keyed]], same: list[_Keyed]
    ) -> Hit | Miss:
        wanted = [one for one in same if query.toolchain in (ANY_TOOLCHAIN, one.key.toolchain)]
        if wanted:
            return Hit(entry=self._entry(session, max(wanted, key=lambda one: one.job_id)))
        with self._lock:
            every = [one for group in groups.values() for one in group.values()]
        explanation = explained(query, distinct(self._near(session, _ranked(query, every))))
        return Miss(query=query, explain=lambda: explanation)

    def _near(self, session: Session, ranked: list[tuple[_Keyed, dict[str, tuple[Any, Any]]]]) -> Iterator[NearMiss]:
        for one, differs in ranked:
            yield NearMiss(entry=self._entry(session, one), differs=differs)

    def _entry(self, session: Session, one: _Keyed) -> Entry:
        known = self._entries.get(one.case_id)
        if known is None:
            settled = winners.settled_case(session, one.case_id)
            known = entry_of(settled)
            if len(self._entries) >= _ENTRIES_KEPT:
                self._entries.clear()
            self._entries[one.case_id] = known
        return known

    def _refresh(self, session: Session) -> None:
        mark = winners.succeeded_jobs_mark(session)
        if mark == self._mark:
            return
        there = winners.succeeded_job_ids(session)
        if not self._jobs.issubset(there):  # of a key, an older job's winner may be the newest that is left
            self._jobs, self._newest, self._entries = set(), {}, {}
        new = [job_id for job_id in there if job_id not in self._jobs]
        for start in range(0, len(new), _JOBS_AT_ONCE):
            some = new[start : start + _JOBS_AT_ONCE]
            for row in winners.winner_keys(session, some):
                self._add(row)
            self._jobs.update(some)
        self._mark = mark

    def _add(self, row: Mapping[str, Any]) -> None:
        key = settled_key(row, device=row["device"], toolchain=row["toolchain"])
        kernel, params = row["case"]["kernel"], row["case"]["params"]
        made = _Keyed(kernel=kernel, params=params, key=key, job_id=row["job_id"], case_id=row["case_id"])
        group = self._newest.setdefault(kernel, {}).setdefault(_without_toolchain(key), {})
        known = group.get(key.toolchain)
        if known is None or known.job_id < made.job_id:
            group[key.toolchain] = made


def _without_toolchain(key: LookupKey) -> str:
    return replace(key, toolchain="").digest


def _ranked(query: Query, every: list[_Keyed]) -> list[tuple[_Keyed, dict[str, tuple[Any, Any]]]]:
    """The keys, the nearest first, of equally near ones the newest."""
    newest_first = sorted(every, key=lambda one: one.job_id, reverse=True)
    differing = [(one, differences(query, one.kernel, one.params, one.key)) for one in newest_first]
    return sorted(differing, key=lambda pair: (len(pair[1]), dims_distance(pair[1])))

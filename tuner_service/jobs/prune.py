"""Retention: jobs that ended long ago go, with all that hangs on them, unless something frozen refers to them.

Each transaction is short and looks again at what it removes, so a service may run beside it, and whoever is killed is
followed by the next call. A job that a catalog was frozen from stays for ever, like the catalog.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from search.program.report import Report
from tuner_service.db.engine import Database
from tuner_service.db.queries import pruning
from tuner_service.jobs.request import Limits, read_labels
from tuner_service.jobs.states import JOB_MOVES, job_has_ended

KEYS = ("older_than", "states", "labels", "dry_run")
ENDED = tuple(state for state in JOB_MOVES if job_has_ended(state))
TRIALS_AT_ONCE = 500
"""Rows that one transaction removes: some ten milliseconds, for which SQLite's other writers wait."""
KEPT_TOLD = 1000
MOST_DAYS = 36_500
_AGE = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE_ALLOWED = "a number and a unit, s, m, h, d or w, such as 30d; at most 100 years"


@dataclass(frozen=True, kw_only=True)
class PruneRequest:
    """Which jobs go: those that ended at least so long ago in one of ``states`` with all of ``labels``."""

    older_than_seconds: int
    states: tuple[str, ...] = ENDED
    labels: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


def read_prune_request(body: Any) -> PruneRequest:
    """The request that a JSON body describes. InvalidInput with every fault."""
    report = Report()
    body = report.members(body, KEYS, not_an_object="a request is a JSON object")
    seconds = _seconds(body.get("older_than"), report)
    states = body.get("states", list(ENDED))
    known = isinstance(states, list) and all(isinstance(state, str) and state in ENDED for state in states)
    if not known or not states:
        message = "only jobs that have ended are pruned; name states in which they did"
        report.add("/states", states, message, list(ENDED))
        states = []
    dry_run = body.get("dry_run", False)
    if not isinstance(dry_run, bool):
        report.add("/dry_run", dry_run, "not true or false", [True, False])
    labels = read_labels(body.get("labels", {}), Limits(), report)
    report.raise_if_any()
    return PruneRequest(older_than_seconds=seconds, states=tuple(dict.fromkeys(states)), labels=labels, dry_run=dry_run)


def prune(database: Database, request: PruneRequest, *, for_seconds: float) -> dict[str, Any]:
    """Removes jobs for about so long; what went, what stayed and why, and whether all is done: ``complete``.

    Jobs whose removal an earlier call began go first, whatever is asked for. A dry run counts and changes nothing.
    DatabaseProblem: what went before it is gone.
    """
    before = _stamp(datetime.now(UTC) - timedelta(seconds=request.older_than_seconds))
    work = _Pruning(database, request, before, time.monotonic() + for_seconds)
    complete = work.run()
    return {
        "dry_run": request.dry_run,
        "finished_before": before,
        "removed": work.removed,
        "kept": work.kept[:KEPT_TOLD],
        "kept_total": len(work.kept),
        "complete": complete,
    }


class _Pruning:
    """One call's work."""

    def __init__(self, database: Database, request: PruneRequest, before: str, deadline: float) -> None:
        self._database, self._request, self._before, self._deadline = database, request, before, deadline
        self.removed = dict.fromkeys(pruning.COUNTED, 0)
        self.kept: list[dict[str, Any]] = []
        with database.read() as session:
            self._references = pruning.references(session)

    def run(self) -> bool:
        """False when the time was over first."""
        with self._database.read() as session:
            begun = pruning.half_pruned_job_ids(session)
        if self._request.dry_run:
            self._count(begun)
        elif not all(self._remove(job_id) for job_id in begun):
            return False
        return all(self._prune(state) for state in self._request.states)

    def _prune(self, state: str) -> bool:
        after = ""
        while True:
            with self._database.read() as session:
                some = pruning.old_job_ids(
                    session, state, before=self._before, labels=self._request.labels, after=after
                )
            if not some:
                return True
            after = some[-1]
            free = [job_id for job_id in some if not self._is_kept(job_id)]
            if self._request.dry_run:
                self._count(free)
            elif not all(self._remove(job_id) for job_id in free):
                return False

    def _is_kept(self, job_id: str) -> bool:
        """Whether something frozen refers to the job; it is then noted."""
        words = self._references.by_job.get(job_id)
        if words:
            self.kept.append({"job_id": job_id, "reason": "it is referred to by", "referred_to_by": list(words)})
        return bool(words)

    def _remove(self, job_id: str) -> bool:
        """Removes a job, or notes why it stays; False when the time is over before it is gone."""
        gone = False
        while not gone:
            if time.monotonic() >= self._deadline:
                return False
            with self._database.write() as session:
                state = pruning.lock_for_removal(session, job_id)
                if state is None:
                    return True  # somebody else prunes too
                if state in ENDED and self._must_stay(session, job_id):
                    return True
                removed, gone = pruning.remove_some(session, job_id, limit=TRIALS_AT_ONCE)
            self._add(removed)
        return True

    def _must_stay(self, session: Any, job_id: str) -> bool:
        """The same look under the job's lock: freezing takes it too, before it stores what refers to the job."""
        if pruning.count_catalogs(session) != self._references.catalogs:
            self._references = pruning.references(session)
        if self._is_kept(job_id):
            return True
        if pruning.tasks_run(session, job_id):
            self.kept.append({"job_id": job_id, "reason": "a task of it still runs", "referred_to_by": []})
            return True
        return False

    def _count(self, job_ids: Sequence[str]) -> None:
        with self._database.read() as session:
            self._add(pruning.count_rows(session, job_ids))

    def _add(self, counts: Mapping[str, int]) -> None:
        for word, number in counts.items():
            self.removed[word] += number


def _seconds(given: Any, report: Report) -> int:
    found = _AGE.fullmatch(given) if isinstance(given, str) else None
    seconds = int(found[1]) * _UNITS[found[2]] if found else MOST_DAYS * 86_400 + 1
    if seconds > MOST_DAYS * 86_400:
        report.add("/older_than", given, "say how long ago the jobs must have ended", _AGE_ALLOWED)
    return seconds


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

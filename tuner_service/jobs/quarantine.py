"""Quarantine: a device that cannot be trusted is used no more until somebody releases it; its jobs wait and say so.

Three things lead there: a child that outlives SIGKILL, stuck in the kernel with the device open; faults of ours in a
row, in tasks of more than one job, with no task in between that went well (one job's faults are that job's); and
somebody who says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from search.children.child import ChildSurvived
from search.device.spec import DeviceSpec
from search.errors import ArtifactLost, ChildFailed, DeviceContended
from search.program.report import Report
from tuner_service.db.engine import Database
from tuner_service.db.queries import workers as worker_queries
from tuner_service.errors import DatabaseProblem, NotFound

log = logging.getLogger(__name__)

FAULTS_IN_A_ROW = 4
"""So many failed tasks of a device in a row, of at least :data:`FAULTY_JOBS` jobs, are the device's doing."""
FAULTY_JOBS = 2
REASON_CHARS = 500


class Quarantines:
    """Which devices are in quarantine, as of the last look. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Mapping[str, Mapping[str, str]] = {}

    @property
    def known(self) -> Mapping[str, Mapping[str, str]]:
        """Device id → ``{"reason", "since"}``."""
        return self._known

    def refresh(self) -> None:
        """Looks again. DatabaseProblem; what is known stays then."""
        with self._database.read() as session:
            self._known = worker_queries.quarantines(session)

    def applied(self, devices: Mapping[str, DeviceSpec]) -> dict[str, DeviceSpec]:
        """The devices, those in quarantine with that as the reason why they cannot be used."""
        known = self._known
        return {
            id_: replace(spec, available=False, reason=quarantine_text(known[id_])) if id_ in known else spec
            for id_, spec in devices.items()
        }

    def put(self, device_id: str, reason: str) -> None:
        """Takes a device out of use; a database that does not answer is noted, and asked again at the next fault."""
        try:
            with self._database.write() as session:
                if worker_queries.quarantine_device(session, device_id, reason):
                    log.error("device %s is in quarantine: %s", device_id, reason)
            self.refresh()
        except (DatabaseProblem, NotFound) as error:
            log.error("device %s should be in quarantine (%s), which cannot be recorded: %s", device_id, reason, error)

    def impose(self, device_id: str, reason: str) -> bool:
        """Takes a device out of use because somebody says so; False when it is in quarantine already, for the reason
        that stands there. NotFound, DatabaseProblem."""
        with self._database.write() as session:
            imposed = worker_queries.quarantine_device(session, device_id, reason)
        if imposed:
            log.warning("device %s was put into quarantine: %s", device_id, reason)
        self.refresh()
        return imposed

    def release(self, device_id: str) -> bool:
        """Lets a device be used again; False when it was in no quarantine. NotFound, DatabaseProblem."""
        with self._database.write() as session:
            released = worker_queries.release_device(session, device_id)
        if released:
            log.warning("device %s was released from quarantine", device_id)
        self.refresh()
        return released


def quarantine_text(row: Mapping[str, str]) -> str:
    """Why a device in quarantine cannot be used; ``row``: reason and since."""
    return f"in quarantine since {row['since']}: {row['reason']}; release it with: tuner devices release ID"


def read_quarantine_reason(body: Any) -> str:
    """The reason in a JSON body, ``{"reason": "…"}``. InvalidInput."""
    report = Report()
    reason = report.members(body, ("reason",), not_an_object="a request is a JSON object").get("reason")
    if not isinstance(reason, str) or not reason.strip() or not reason.isprintable() or len(reason) > REASON_CHARS:
        allowed = f"one line of 1 to {REASON_CHARS} printable characters"
        report.add("/reason", reason, "say why nobody should use the device: people will read it", allowed)
    report.raise_if_any()
    return str(reason).strip()


@dataclass
class _Streak:
    """Faults of a device in a row."""

    faults: int = 0
    jobs: set[str] = field(default_factory=set)


class DeviceFaults:
    """Counts what goes wrong on devices, and puts one that keeps failing into quarantine. Thread-safe."""

    def __init__(self, quarantines: Quarantines) -> None:
        self._quarantines = quarantines
        self._streaks: dict[str, _Streak] = {}
        self._lock = threading.Lock()

    def worked(self, device_id: str) -> None:
        """A task of the device ended well."""
        with self._lock:
            self._streaks.pop(device_id, None)

    def failed(self, device_id: str, job_id: str, error: BaseException) -> None:
        """A task of the device ended in an exception."""
        if isinstance(error, ChildSurvived):
            self._quarantines.put(device_id, f"a child could not be killed: {error}")
            return
        if not isinstance(error, ChildFailed) or isinstance(error, DeviceContended | ArtifactLost):
            return
        with self._lock:
            streak = self._streaks.setdefault(device_id, _Streak())
            streak.faults += 1
            streak.jobs.add(job_id)
            spent = streak.faults >= FAULTS_IN_A_ROW and len(streak.jobs) >= FAULTY_JOBS
            if spent:
                del self._streaks[device_id]
        if spent:
            count = f"{streak.faults} tasks in a row failed on it, of {len(streak.jobs)} jobs"
            self._quarantines.put(device_id, f"{count}; the last one: {error}")

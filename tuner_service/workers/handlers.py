"""What an engine calls: tasks go to who performs them, unless this process must not, or does not understand them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from search.device.spec import DeviceSpec
from search.errors import InvalidInput
from search.program.digest import program_digest
from search.replay.records import step_from_document as replay_step_from_document
from search.step import step_from_document
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances, cases, jobs
from tuner_service.engine.contract import Task
from tuner_service.errors import NotFound
from tuner_service.jobs.acceptance import is_acceptance
from tuner_service.jobs.claiming import release
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.opening import case_of
from tuner_service.jobs.quarantine import DeviceFaults, Quarantines
from tuner_service.workers.acceptance import AcceptanceWorker
from tuner_service.workers.perform import Worker

log = logging.getLogger(__name__)

ANOTHER_VERSION_PAUSE_SECONDS = 5.0
"""A slot that handed a task back rests so long: another worker shall get it before this one does again."""


class Handlers:
    """``handle`` and ``on_failure`` of an engine. Thread-safe."""

    def __init__(
        self,
        *,
        database: Database,
        ledger: Ledger,
        worker: Worker,
        replays: AcceptanceWorker,
        quarantines: Quarantines,
        devices: Callable[[], Mapping[str, DeviceSpec]],
        serves: Callable[[str], bool] = lambda device_id: True,
        leaving: threading.Event | None = None,
    ) -> None:
        """``devices``: those of this process; ``serves``: whether it may measure on one now; ``leaving``: it stops."""
        self._database, self._ledger = database, ledger
        self._worker, self._replays = worker, replays
        self._quarantines, self._devices, self._serves = quarantines, devices, serves
        self._leaving = leaving or threading.Event()
        self._faults = DeviceFaults(quarantines)
        self._same_program: set[str] = set()
        """Cases whose program is the submitted one."""
        self._toolchains: dict[str, str] = {}
        """Job or acceptance → the fingerprint of the toolchain that it began with."""

    def handle(self, task: Task, cancelled: Callable[[], bool]) -> None:
        """Performs a task, or hands it back uncharged; see ``engine.contract.Handler``."""
        if task.queue == "device" and not self._may_measure(task.device_id):
            log.info("task %s is handed back: device %s is not this worker's to use now", task.key, task.device_id)
            self.hand_back(task)
            return
        if reason := self._foreign(task):
            log.warning("task %s of job %s is handed back: %s", task.key, task.job_id, reason)
            self.hand_back(task)
            self._leaving.wait(ANOTHER_VERSION_PAUSE_SECONDS)
            return
        if task.queue != "device":
            self._performer(task).handle(task, cancelled)
            return
        self._performer(task).handle(task, lambda: cancelled() or not self._may_measure(task.device_id))
        self._faults.worked(task.device_id)

    def on_failure(self, task: Task, error: BaseException) -> None:
        """Decides what an exception means, for the device and for the job."""
        if task.queue == "device":
            self._faults.failed(task.device_id, task.job_id, error)
        self._performer(task).on_failure(task, error)

    def hand_back(self, task: Task) -> None:
        """The task was not done, and nobody is charged: the next advance asks for it again. DatabaseProblem."""
        if not is_acceptance(task.job_id):  # an acceptance's step is asked for again as soon as it is not in flight
            claimed_at = task.payload["claimed_at"]
            release(self._database, self._ledger, task.key, fault=None, stopped=True, claimed_at=claimed_at)

    def _performer(self, task: Task) -> Worker | AcceptanceWorker:
        return self._replays if is_acceptance(task.job_id) else self._worker

    def _may_measure(self, device_id: str) -> bool:
        return device_id not in self._quarantines.known and self._serves(device_id)

    def _foreign(self, task: Task) -> str | None:
        """Why another version than this worker's must perform a task; None when this one may."""
        replay = is_acceptance(task.job_id)
        try:
            (replay_step_from_document if replay else step_from_document)(task.payload["step"])
        except (KeyError, TypeError, ValueError) as error:
            return f"this version does not know its step: {type(error).__name__}: {error}"
        case_id = None if replay else task.payload["case_id"]
        case = None
        if task.job_id not in self._toolchains or (case_id is not None and case_id not in self._same_program):
            try:
                with self._database.read() as session:
                    row = (acceptances.acceptance_row if replay else jobs.job_row)(session, task.job_id)
                    case = None if case_id is None else cases.case_row(session, case_id)
            except NotFound:
                return None  # whoever performs it will find its claim void
            self._toolchains[task.job_id] = row["device"]["toolchain_fingerprint"]
        then, mine = self._toolchains[task.job_id], self._devices().get(task.device_id)
        if task.queue == "device" and mine is not None and mine.toolchain_fingerprint != then:
            return f"device {mine.id} has the toolchain {mine.toolchain_fingerprint} here; the job began with {then}"
        if case is None or case["id"] in self._same_program:
            return None
        try:
            known = case_of(task.payload["case"])
        except InvalidInput as error:
            return f"this version does not know its kernel: {error}"
        if case["program_digest"] not in (None, program_digest(known.program, known.params)):
            return f"the kernel {case['kernel']} is another program in this version"
        self._same_program.add(case["id"])
        return None

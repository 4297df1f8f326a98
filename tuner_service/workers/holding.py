"""Which devices a worker process may use now: it holds their leases in the database, and renews them while it lives.

The lease stands beside the lock of the host, which containers do not share. Who was away for so long that others may
have taken a lease over measures nothing on that device until it holds the lease again.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sqlalchemy.orm import Session

from search.device.spec import DeviceSpec
from tuner_service.db.engine import Database
from tuner_service.db.queries import devices as device_queries
from tuner_service.db.queries import workers as worker_queries
from tuner_service.errors import DatabaseProblem

log = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
"""Between two signs of life."""
NOTE_AGAIN_SECONDS = 30.0
"""How often a device that did not change is noted as seen."""


def this_place() -> str:
    """Where pids mean what they mean here: this boot of this machine, and this namespace of pids."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"unknown {secrets.token_hex(8)}"  # nobody else's


class Holding:
    """The row of one worker, and its leases. Thread-safe; one thread of its own beats."""

    def __init__(
        self,
        *,
        database: Database,
        row: Mapping[str, Any],
        devices: Callable[[], Mapping[str, DeviceSpec]],
        compile_keys: Callable[[], Sequence[str]],
        is_full: Callable[[], bool] = lambda: False,
        queue_worker: Callable[[], int | None] = lambda: None,
        lost_seconds: float,
        changed: Callable[[], None] = lambda: None,
        beaten: Callable[[], None] = lambda: None,
    ) -> None:
        """``row``: id, host, pid, place, version, compile_slots. ``devices``: those that it is to offer, by id.
        ``is_full``: whether it takes nothing for want of room on its disk. ``queue_worker``: its number in the queue.

        ``changed`` is called when it may use others than before, ``beaten`` after each sign of life.
        """
        self._database, self._row = database, dict(row)
        self.worker_id = str(row["id"])
        self._devices, self._compile_keys, self._is_full = devices, compile_keys, is_full
        self._queue_worker = queue_worker
        self._lost_seconds, self._changed, self._beaten = lost_seconds, changed, beaten
        self._held: dict[str, float] = {}
        """Device id → monotonic time of the last renewal, taken before the database was asked."""
        self._others: dict[str, str] = {}
        self._noted: dict[str, tuple[DeviceSpec, float]] = {}
        """Device id → what was stored of it, and when."""
        self._retired = -math.inf
        """When those that this one replaces were looked for last (monotonic clock)."""
        self._draining = False
        self._registered = False
        self._wanted, self._stopping = threading.Event(), threading.Event()
        self._beating = threading.Lock()
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)

    @property
    def held(self) -> tuple[str, ...]:
        """Devices that it holds as of the last sign of life."""
        return tuple(sorted(self._held))

    @property
    def others(self) -> Mapping[str, str]:
        """Devices that it wants and somebody else holds → who."""
        return dict(self._others)

    def serves(self, device_id: str) -> bool:
        """Whether it may use a device now: by the time that passed, nobody can have taken the lease over."""
        renewed = self._held.get(device_id)
        return renewed is not None and time.monotonic() - renewed < self._lost_seconds

    def start(self) -> None:
        """The first sign of life, and then one after the other. DatabaseProblem."""
        self.beat()
        self._thread.start()

    def soon(self) -> None:
        """Something changed that the database should know: beat at once."""
        self._wanted.set()

    def drain(self) -> None:
        """Says that this worker takes nothing more. A database that does not answer is told nothing."""
        self._draining = True
        try:
            self.beat()
        except DatabaseProblem as error:
            log.warning("the database could not be told that this worker stops: %s", error)

    def close(self) -> None:
        """Gives the leases back and says that this worker is gone; by itself it is known after a while."""
        self._stopping.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._held.clear()
        if not self._registered:
            return
        try:
            with self._database.within(2.0).write() as session:
                worker_queries.drop_leases(session, self.worker_id)
                worker_queries.beat_worker(session, self.worker_id, devices=[], compile_keys=[], state="gone")
        except DatabaseProblem as error:
            log.warning("the database could not be told that this worker is gone: %s", error)

    def beat(self) -> None:
        """One sign of life: leases are taken or renewed, and what this worker serves is noted. DatabaseProblem."""
        with self._beating:
            wanted, now = self._devices(), time.monotonic()
            held: dict[str, float] = {}
            others: dict[str, str] = {}
            with self._database.write() as session:
                for spec in sorted(wanted.values(), key=lambda spec: spec.id):  # as others who lock the same rows
                    holder = self._take(session, spec)
                    if holder is None:
                        held[spec.id] = now
                    else:
                        others[spec.id] = holder
                noted = self._note(session, [wanted[id_] for id_ in held], now)
                serves: dict[str, Any] = {
                    "devices": sorted(held),
                    "compile_keys": self._compile_keys(),
                    "state": self._state(),
                    "queue_worker": self._queue_worker(),
                }
                if not worker_queries.beat_worker(session, self.worker_id, **serves):
                    worker_queries.register_worker(session, {**self._row, **serves})
                retires = now - self._retired >= NOTE_AGAIN_SECONDS
                if retires:
                    worker_queries.retire_replaced(
                        session, self.worker_id, lost_seconds=self._lost_seconds, dead=self._is_dead
                    )
            self._retired = now if retires else self._retired
            self._noted = noted
            self._registered = True
            before, self._held = self._held, held
            self._tell(before, others)
        self._beaten()
        if before.keys() != held.keys():
            self._changed()

    def _state(self) -> Literal["running", "draining", "full"]:
        if self._draining:
            return "draining"
        return "full" if self._is_full() else "running"

    def _take(self, session: Session, spec: DeviceSpec) -> str | None:
        """Takes or renews a lease, where a device needs one; else who has it."""
        if not spec.timed:
            return self._disagrees(session, spec)
        holder = worker_queries.take_lease(
            session, spec.uuid or spec.id, self.worker_id, lost_seconds=self._lost_seconds, dead=self._is_dead
        )
        return None if holder is None else f"worker {holder['id']} on host {holder['host']}"

    def _disagrees(self, session: Session, spec: DeviceSpec) -> str | None:
        """Several may offer what times nothing, if their compilers are the same; else the one that came first."""
        for worker in worker_queries.present_workers(session, lost_seconds=self._lost_seconds):
            if worker["id"] != self.worker_id and spec.id in worker["devices"]:
                known = device_queries.get_device(session, spec.id)
                if known["toolchain_fingerprint"] != spec.toolchain_fingerprint:
                    return f"worker {worker['id']} on host {worker['host']}, with another toolchain"
        return None

    def _note(self, session: Session, held: Sequence[DeviceSpec], now: float) -> dict[str, tuple[DeviceSpec, float]]:
        """Stores what a held device is when that changed, and once in a while that it was seen."""
        noted = {}
        for spec in held:
            known, then = self._noted.get(spec.id, (None, 0.0))
            if known != spec or now - then >= NOTE_AGAIN_SECONDS:
                device_queries.seen_device(session, spec.document())
                then = now
            noted[spec.id] = (spec, then)
        return noted

    def _tell(self, before: Mapping[str, float], others: Mapping[str, str]) -> None:
        for device_id, who in others.items():
            if self._others.get(device_id) != who:
                verb = "was taken over" if device_id in before else "is held"
                log.warning(
                    "device %s %s by %s; this worker waits for it. If it is another machine of the same make, start "
                    "this worker with a --name",
                    *(device_id, verb, who),
                )
        for device_id in self._others.keys() - others.keys():
            if device_id in self._held:
                log.info("device %s is free, and this worker holds it now", device_id)
        self._others = dict(others)

    def _is_dead(self, worker: Mapping[str, Any]) -> bool:
        """A worker that was killed where this one runs need not be waited for."""
        if worker["place"] != self._row["place"]:
            return False
        return worker["pid"] == self._row["pid"] or not Path(f"/proc/{worker['pid']}").exists()

    def _keep_beating(self) -> None:
        away = False
        while not self._stopping.is_set():
            self._wanted.wait(BEAT_SECONDS)
            self._wanted.clear()
            if self._stopping.is_set():
                return
            try:
                self.beat()
            except DatabaseProblem as error:
                if not away:
                    log.warning("worker %s goes on without the database: %s", self.worker_id, error)
                away = True
                self._stopping.wait(0.5)
            except Exception:
                log.exception("worker %s could not give a sign of life", self.worker_id)
            else:
                if away:
                    log.info("worker %s is back at the database", self.worker_id)
                away = False

"""The devices of a service as they are now, and the thread that looks at them: never beside a quiet measurement."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from search.device.gpu import ABSENT_KIND
from search.device.spec import DeviceSpec
from search.errors import Cancelled
from tuner_service.db.engine import Database
from tuner_service.db.queries import devices as device_queries
from tuner_service.errors import DatabaseProblem
from tuner_service.workers.compile_only import CompileOnlyDevices

log = logging.getLogger(__name__)

PROBE_RETRY_SECONDS = 5.0
"""Pause after a first probe that broke off."""
PROBE_AGAIN_SECONDS = 30.0
"""How often the drivers are asked what is there, an unavailable device is tried again, a present one noted as seen."""
UNDISTURBED_POLL_SECONDS = 0.25
"""How soon a look that a quiet measurement forbade is tried again."""
GONE = "not attached any more: "

Probe = Callable[[Path, Sequence[DeviceSpec]], Sequence[DeviceSpec]]
"""Work directory, and known devices whose compilers need not be tried again if they are available → what is there."""
Undisturbed = Callable[[], AbstractContextManager[bool]]
"""See ``engine.local.LocalEngine.undisturbed``."""


class Devices:
    """Attached devices and compile-only ones. Thread-safe: whoever asks gets what is known, and waits for no look."""

    def __init__(
        self,
        *,
        database: Database | None,
        work: Path,
        probe: Probe,
        compile_only: CompileOnlyDevices,
        stopping: threading.Event,
    ) -> None:
        """``database``: where they are noted; None where somebody else does that."""
        self._database, self._work, self._probe, self._stopping = database, work, probe, stopping
        self._compile_only = compile_only
        self._attached: dict[str, DeviceSpec] = {}
        self._gone: frozenset[str] = frozenset()
        self._asked: set[str | None] = set()
        """Compile-only devices to be looked at; None: all of them."""
        self._glance, self._doubt = False, False
        self._in_doubt = False
        """A compiler of attached devices broke, and what came of trying it again is not known yet."""
        self._looking = False
        self._changed = threading.Condition()

    @property
    def known(self) -> Mapping[str, DeviceSpec]:
        """Every device by id, as it was seen last: empty before the first probe."""
        attached = self._attached
        if not attached:
            return {}
        # Nothing is compiled for them where something may be measured.
        cpus = next((spec.compile_cpus for spec in attached.values() if spec.compile_cpus), None)
        untimed = self._compile_only.known.items()
        return attached | {id_: replace(spec, compile_cpus=cpus or spec.compile_cpus) for id_, spec in untimed}

    @property
    def gone(self) -> frozenset[str]:
        """Ids of devices that were attached and are not, as of the last look."""
        return self._gone

    @property
    def looking(self) -> bool:
        """Whether a look that somebody asked for is still to come to its end."""
        with self._changed:
            return bool(self._asked) or self._looking or self._in_doubt

    def look(self, name: str | None = None) -> bool:
        """Asks for a look at a compile-only device (all of them), where what is known does not hold; returns at once.

        Whether what is known of the device holds; that of attached ones does unless a compiler broke just now.
        """
        if name is not None and name not in self._compile_only.known:
            return not self._in_doubt
        with self._changed:
            if self._compile_only.holds(name):
                return True
            self._asked.add(name)
            self._changed.notify_all()
            return False

    def wait_looked(self, name: str, timeout_seconds: float) -> bool:
        """Asks as :meth:`look` does and waits; whether what is known holds when the time is over at the latest."""
        if self.look(name):
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._holds(name), timeout_seconds)

    def doubt(self, *, toolchains: bool) -> None:
        """Something broke while a device was used: look soon, at the compilers as well if they are in doubt."""
        with self._changed:
            self._glance, self._doubt = True, self._doubt or toolchains
            if toolchains:
                self._in_doubt = True
                self._compile_only.forget()
            self._changed.notify_all()

    def _holds(self, name: str) -> bool:
        """Whether what is known of a device is to be believed now."""
        return self._compile_only.holds(name) if name in self._compile_only.known else not self._in_doubt

    def stop(self) -> None:
        """Wakes the thread, which ends when the service stops."""
        with self._changed:
            self._changed.notify_all()

    def probe_first(self) -> bool:
        """Finds out what is attached, trying again until it comes to something; False when told to stop before."""
        while not self._stopping.is_set():
            try:
                self._attached = merged({}, self._probe(self._work, ()))
            except Cancelled:
                return False
            except Exception:
                log.exception("devices could not be probed; trying again")
                self._stopping.wait(PROBE_RETRY_SECONDS)
                continue
            while not self._note(seen=self._attached) and not self._stopping.is_set():
                self._stopping.wait(PROBE_RETRY_SECONDS)
            return True
        return False

    def watch(self, undisturbed: Undisturbed, attach: Callable[[str], None], changed: Callable[[], None]) -> None:
        """Looks whenever it is asked for, and at the drivers once in a while, until the service stops.

        ``attach`` hears of each device's id before it is shown; ``changed`` is called when one came, went or changed.
        """
        looked = time.monotonic()
        while not self._stopping.is_set():
            with self._changed:
                due = lambda: self._asked or self._glance or self._stopping.is_set()  # noqa: E731
                self._changed.wait_for(due, max(0.0, looked + PROBE_AGAIN_SECONDS - time.monotonic()))
            if self._stopping.is_set():
                return
            free = False
            try:
                with undisturbed() as free:
                    if free:
                        if self._take_glance(overdue=time.monotonic() - looked >= PROBE_AGAIN_SECONDS):
                            looked = time.monotonic()
                            self._look_at_attached(attach, changed)
                        self._look_at_compile_only(changed)
            except Exception:  # nobody else would look ever again
                log.exception("devices could not be looked at; trying again")
                self._stopping.wait(PROBE_RETRY_SECONDS)
            if not free:
                self._stopping.wait(UNDISTURBED_POLL_SECONDS)

    def _take_glance(self, *, overdue: bool) -> bool:
        with self._changed:
            wanted, self._glance = self._glance or overdue, False
            return wanted

    def _look_at_attached(self, attach: Callable[[str], None], changed: Callable[[], None]) -> None:
        with self._changed:
            doubted, self._doubt = self._doubt, False
        before = self._attached
        known = [replace(spec, available=False) for spec in before.values()] if doubted else list(before.values())
        try:
            found = self._probe(self._work, known)
        except Cancelled:
            return
        except Exception:
            log.exception("devices could not be looked at again")
            with self._changed:
                self._doubt = self._doubt or doubted
            return
        after = merged(before, found)
        for spec in after.values():
            attach(spec.id)
        here = {spec.id for spec in found}
        self._attached, self._gone = after, frozenset(after.keys() - here)
        with self._changed:
            self._in_doubt = self._doubt or (self._in_doubt and not doubted)
            self._changed.notify_all()
        self._note(seen={id_: spec for id_, spec in after.items() if id_ in here}, gone=after)
        then, now = _short(before), _short(after)
        for id_ in now:
            if then.get(id_) != now[id_]:
                log.info("device %s is %s", id_, "available" if now[id_][0] else f"unavailable: {now[id_][1]}")
        if then != now or doubted:
            changed()

    def _look_at_compile_only(self, changed: Callable[[], None]) -> None:
        with self._changed:
            asked, self._asked = self._asked, set()
            self._looking = bool(asked)
        if not asked:
            return
        before = _short(self._compile_only.known)
        try:
            with _pinned(next((spec.compile_cpus for spec in self._attached.values() if spec.compile_cpus), ())):
                for name in sorted(asked, key=str):
                    self._compile_only.look(name)
        finally:
            with self._changed:
                self._looking = False
                self._changed.notify_all()
        after = self._compile_only.known
        if before != _short(after):
            self._note(seen={id_: spec for id_, spec in after.items() if spec.available})
            changed()

    def _note(self, *, seen: Mapping[str, DeviceSpec], gone: Mapping[str, DeviceSpec] | None = None) -> bool:
        """Records devices, those that were seen with the time; False when the database has a problem."""
        if self._database is None:
            return True
        try:
            with self._database.write() as session:
                for spec in seen.values():
                    device_queries.seen_device(session, spec.document())
                for id_, spec in (gone or {}).items():
                    if id_ not in seen:
                        device_queries.note_device(session, spec.document())
        except DatabaseProblem as error:
            log.warning("devices could not be noted: %s", error)
            return False
        return True


def merged(known: Mapping[str, DeviceSpec], found: Sequence[DeviceSpec]) -> dict[str, DeviceSpec]:
    """The devices by id after a look: what was found, and what was known and is gone, with the reason.

    The one that stands for absent GPUs stays only while no GPU is known: its reason becomes theirs.
    """
    here = {spec.id: spec for spec in found}
    absent = here.get(ABSENT_KIND)  # none at all; one at a place among others has another id
    why = GONE + (absent.reason or "nobody knows why" if absent else "the last look at this machine did not find it")
    gone = {
        id_: replace(spec, available=False, reason=why)
        for id_, spec in known.items()
        if id_ not in here and spec.kind != ABSENT_KIND
    }
    after = {**{id_: here.get(id_) or gone[id_] for id_ in known if id_ in here or id_ in gone}, **here}
    if absent is not None and any(spec.uuid is not None for spec in after.values()):
        del after[ABSENT_KIND]
    return after


def not_attached(spec: DeviceSpec) -> DeviceSpec:
    """A device that is remembered from another day."""
    return replace(spec, available=False, reason=f"{GONE}this service has not seen it since it was started")


@contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """This thread, and what it starts, keeps to these cores: on another something may be measured."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _short(devices: Mapping[str, DeviceSpec]) -> dict[str, tuple[bool, str | None, str]]:
    """What makes a difference to jobs."""
    return {id_: (spec.available, spec.reason, spec.toolchain_fingerprint) for id_, spec in devices.items()}

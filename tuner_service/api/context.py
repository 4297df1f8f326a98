"""What the routes work with: settings, database and the running machinery, put together by the app."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from search.device.spec import DeviceSpec
from search.lowering.blobs import Blobs
from search.lowering.contract import Source
from search.lowering.store import ArtifactStore
from tuner_service.api import kinds
from tuner_service.api.problems import ProblemError
from tuner_service.db.engine import Database
from tuner_service.jobs.winner_index import WinnerIndex
from tuner_service.settings import Settings

PROBE_WAIT_SECONDS = 5.0
"""A submit that comes while devices are being probed waits so long before it answers 503."""
LOOK_WAIT_SECONDS = 20.0
"""A submit for a compile-only device waits so long for the first look at it, which tries a compiler."""
LOOK_WAITERS = 8
"""So many submits wait for a look at the same time; further ones are answered 503 at once, and no thread is missing."""


class Runtime(Protocol):
    """What the API needs of the machinery that runs jobs. Every method is thread-safe."""

    @property
    def devices(self) -> Mapping[str, DeviceSpec]:
        """Attached devices by id, empty until probed; compile-only ones as they were looked at last."""
        ...

    @property
    def looking(self) -> bool:
        """Whether a look at devices that was asked for has not ended yet."""
        ...

    def away(self) -> Mapping[str, DeviceSpec]:
        """Devices that cannot be used now and that a job may wait for, by id; of a kind, the one seen last first.

        DatabaseProblem.
        """
        ...

    def look(self, name: str | None = None) -> None:
        """Ask that a device be known as it is now; without a name, every one. Returns at once."""
        ...

    def wait_looked(self, name: str, timeout_seconds: float) -> bool:
        """Ask the same and wait; False when the time is over first."""
        ...

    def leases(self) -> Mapping[str, Mapping[str, Any]]:
        """Device id → the task that holds it now."""
        ...

    def waiting(self) -> Mapping[str, str]:
        """Jobs that wait for something on the service's side → the reason."""
        ...

    def queues(self) -> Mapping[str, Mapping[str, int]]:
        """Queue → tasks in it: ``{"waiting", "running"}``. DatabaseProblem."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process is the one that advances jobs."""
        ...

    def live_workers(self) -> int | None:
        """Workers that were heard of lately; None where this process compiles and measures by itself.

        DatabaseProblem.
        """
        ...

    def wait_probed(self, timeout_seconds: float) -> bool:
        """Wait until every device was looked for; False when the time is over first."""
        ...

    def wake(self, job_id: str) -> None:
        """Look at this job soon."""
        ...

    def cancel(self, job_id: str) -> None:
        """Stop a job: ledger first, then queued work, then running children."""
        ...

    def load_source(self, source_sha256: str) -> Source | None:
        """A kernel's source from the artifact store; None when it is not there.

        ArtifactsUnavailable, DatabaseProblem.
        """
        ...

    def load_library(self, sha256: str) -> bytes | None:
        """A compiled library from the artifact store, verified; None when it is not there, whole.

        ArtifactsUnavailable, DatabaseProblem.
        """
        ...

    @property
    def artifact_store(self) -> ArtifactStore:
        """The artifacts in the data directory."""
        ...

    @property
    def shared_artifacts(self) -> Blobs | None:
        """The artifact store that machines share; None where this machine's own is the only one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """One service."""

    settings: Settings
    database: Database
    """With the patience of a request at the write lock."""
    runtime: Runtime
    winners: WinnerIndex = field(default_factory=WinnerIndex)
    closing: threading.Event = field(default_factory=threading.Event)
    """Set when the service stops: open streams end."""
    look_waiters: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(LOOK_WAITERS))

    def probed_devices(self, wanted: Any = None) -> Mapping[str, DeviceSpec]:
        """The devices, once they are known; the one that is ``wanted`` by name as it is now.

        Raises a not-ready problem while they are not known.
        """
        if not self.runtime.wait_probed(PROBE_WAIT_SECONDS):
            raise ProblemError(kinds.NOT_READY, "devices are still being probed")
        if isinstance(wanted, str) and not self._looked(wanted):
            detail = f"device {wanted} is being looked at; that waits while a measurement needs quiet"
            raise ProblemError(kinds.NOT_READY, detail)
        return self.runtime.devices

    def _looked(self, name: str) -> bool:
        if not self.look_waiters.acquire(blocking=False):
            return self.runtime.wait_looked(name, 0.0)
        try:
            return self.runtime.wait_looked(name, LOOK_WAIT_SECONDS)
        finally:
            self.look_waiters.release()


def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


ContextOf = Annotated[Context, Depends(_context)]

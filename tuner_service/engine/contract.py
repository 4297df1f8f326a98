"""The seam between our ledger and whatever runs tasks. One Protocol, one conformance suite, every adapter.

The engine owns nothing: it runs tasks and forgets them. Our database owns every state, so a task may be lost or
repeated at any time; ``advance`` asks again for whatever is still missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol

Queue = Literal["compile", "device"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One unit of work. JSON only, no pickles."""

    key: str
    """Unique while in flight: a second submit of the same key is refused."""
    job_id: str
    queue: Queue
    device_id: str
    """The device whose measuring slot a ``device`` task takes (compile tasks: the device they build for)."""
    quiet: bool
    """Nothing of ours may overlap it: the compile pool is idle while it runs."""
    priority: int
    """Smaller runs first among waiting tasks of a queue."""
    payload: Mapping[str, Any]
    compile_key: str = ""
    """What must be equal for a ``compile`` task's artifact to be the same: workers that have it take the task."""
    builds: bool = False
    """A ``device`` task that compiles on every core: to quiet tasks it is what a compile task is."""

    @property
    def gated(self) -> bool:
        """Whether it waits for its host to be quiet, or to stop being so, after a device's slot has taken it."""
        return self.queue == "device" and (self.quiet or self.builds)

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Task:
        """Inverse of :meth:`document`; members that another version added are left out. KeyError, TypeError."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})


def has_begun(document: Mapping[str, Any]) -> bool:
    """Whether a taken task is performed, as far as was said: one that is gated says so when it is let in."""
    return not Task.from_document(document).gated or bool(document.get("begun"))


Handler = Callable[[Task, Callable[[], bool]], None]
"""Performs a task and records what came of it. Called with the task and ``cancelled()``. Must not raise for a
candidate's faults; an exception is a bug of ours and is reported through ``on_failure``."""


class Engine(Protocol):
    """Thread-safe. Handlers are injected by the app; after each task the engine calls ``after(job_id)``.

    An engine whose tasks are in a database raises DatabaseProblem from ``submit``, ``in_flight``, ``withdraw`` and
    ``cancel``.
    """

    def start(self) -> None:
        """Begin to run tasks."""
        ...

    def submit(self, task: Task) -> bool:
        """Queue a task; False when its key is already in flight."""
        ...

    def in_flight(self, job_id: str) -> frozenset[str]:
        """Keys of this job's queued and running tasks, whoever runs them."""
        ...

    def withdraw(self, job_id: str) -> None:
        """Withdraw queued tasks of the job; running ones go on."""
        ...

    def cancel(self, job_id: str) -> None:
        """Withdraw queued tasks of the job and make ``cancelled()`` true for running ones."""
        ...

    def close(self, *, timeout_seconds: float) -> None:
        """Stop: begin nothing more, cancel what this engine runs, wait for it.

        Tasks that wait are withdrawn where no other process could take them.
        """
        ...

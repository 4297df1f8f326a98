"""Exceptions of the service: what is wrong with us or with the request, never with a candidate.

::

    ServiceError
    ├── DatabaseProblem          the database cannot do what was asked; nothing that it recorded is lost
    │   ├── DatabaseFull         no space left for the database
    │   ├── DatabaseBusy         another process held the write lock longer than we wait
    │   ├── DatabaseUnavailable  the file or server cannot be opened, read or written
    │   └── DatabaseOutdated     the schema is not the one that this version works with
    ├── NotFound                 no such job, trial, device, …
    ├── Conflict                 what was asked for is not possible in the present state of things
    ├── IdempotencyMismatch      an Idempotency-Key came again with another request
    ├── SettingsDisagree         a process has another setting than the others of its deployment
    ├── WorkerMisplaced          a worker cannot work with the database or store that it was given
    ├── DataDirInUse             another service works on this data directory
    ├── DatabaseInUse            another service works on this database by itself
    ├── DeviceAwaited            a job cannot go on before its device is known, or back
    ├── DataDirUnusable          the data directory cannot be made or written
    └── OurFault                 a job cannot go on because of us; its message becomes the job's ``error``
        ├── DiskFull             no space left for artifacts or sources
        ├── DeviceVanished       the job's device is not here, or not usable, any more
        └── ProgramChanged       a kernel's name stands for another program than when the job was submitted

What a caller gave wrong is ``search.errors.InvalidInput``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ServiceError(Exception):
    """Root of every exception that this package raises on purpose."""


class DatabaseProblem(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """The database cannot do what was asked."""


class DatabaseFull(DatabaseProblem):
    """No space left for the database."""


class DatabaseBusy(DatabaseProblem):
    """Another process held the write lock longer than we wait."""


class DatabaseUnavailable(DatabaseProblem):
    """The database cannot be opened, read or written."""


class DatabaseOutdated(DatabaseProblem):
    """The schema is not the one that this version works with; the message says what to type."""


class NotFound(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """There is nothing of that kind with that id."""

    def __init__(self, kind: str, identifier: str) -> None:
        self.kind, self.identifier = kind, identifier
        super().__init__(f"no {kind} {identifier!r}")


class Conflict(ServiceError):  # noqa: N818 - the conflict is the fact, as in an HTTP 409
    """What was asked for is not possible in the present state of things; ``members`` are facts for the caller."""

    def __init__(self, message: str, *, members: Mapping[str, Any] | None = None) -> None:
        self.members = dict(members or {})
        super().__init__(message)


class IdempotencyMismatch(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """An Idempotency-Key came again with another request."""

    def __init__(self, key: str, made_id: str) -> None:
        self.key, self.made_id = key, made_id
        super().__init__(f"Idempotency-Key {key!r} came with another request, which made {made_id}; use a new key")


class SettingsDisagree(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """A process has another setting than all others of its deployment; the message says which, and what to type."""

    def __init__(self, message: str, variables: Sequence[str]) -> None:
        self.variables = tuple(variables)
        super().__init__(message)


class WorkerMisplaced(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """A worker cannot work with the database or store that it was given; the message says what to type."""


class DataDirInUse(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """Another service works on this data directory."""

    def __init__(self, data_dir: Path, pid: str) -> None:
        self.data_dir, self.pid = data_dir, pid
        super().__init__(f"{data_dir} is in use by the service with pid {pid}; stop it or give another --data-dir")


class DatabaseInUse(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """Another service works on this database by itself; the message says what to do."""


class DataDirUnusable(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """The data directory cannot be made or written."""

    def __init__(self, data_dir: Path, error: OSError) -> None:
        self.data_dir = data_dir
        where = "" if error.filename in (None, str(data_dir)) else f" ({error.filename})"
        super().__init__(f"cannot use the data directory {data_dir}: {error.strerror or error}{where}")


class DeviceAwaited(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """A job cannot go on before its device is known, or back; the message says what it waits for."""


class OurFault(ServiceError):  # noqa: N818 - named for what happened, as the tree shows
    """A job cannot go on because of us; the message becomes the job's ``error``."""


class DiskFull(OurFault):
    """No space left for artifacts or sources."""


class DeviceVanished(OurFault):
    """The job's device is not here, or not usable, any more."""


class ProgramChanged(OurFault):
    """A kernel's name stands for another program than when the job was submitted, or for none."""

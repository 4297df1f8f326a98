"""Exceptions of the search package: bugs and misuse only. What a candidate does wrong is ``search.outcome.Rejected``.

::

    TunerError
    ├── InvalidInput          one or more Problems in what the caller gave; nothing was created
    ├── ToolchainUnavailable  the compiler or TileLang is missing or broken; the device is shown as unavailable
    │   └── DeviceUnavailable     the device itself is not there, or not any more
    ├── ChildFailed           a child of ours (not the candidate's code) broke its protocol
    │   ├── DeviceContended       others kept computing on the device for as long as we waited
    │   └── ArtifactLost          a library is in no store any more, and a new build is not the same code
    ├── ArtifactsUnavailable  the artifact store that machines share cannot be reached; ask again later
    ├── ArtifactTooLarge      more bytes than the artifact store takes
    ├── LocksUnusable         the folder of this host's locks cannot be written
    └── Cancelled             the caller asked to stop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with an input.

    ``field`` is a JSON pointer into what was given (``/cases/0/dims/rows``), ``value`` what stood there,
    ``message`` says what is wrong and how to mend it, ``allowed`` lists or describes what is accepted.
    """

    field: str
    value: Any
    message: str
    allowed: Any = None

    def document(self) -> dict[str, Any]:
        """JSON form, as in the ``errors`` list of a problem response."""
        return {"field": self.field, "value": self.value, "message": self.message, "allowed": self.allowed}

    def under(self, prefix: str) -> Problem:
        """The same problem, seen from an enclosing document."""
        return Problem(field=prefix + self.field, value=self.value, message=self.message, allowed=self.allowed)


class TunerError(Exception):
    """Root of every exception that this package raises on purpose."""


class InvalidInput(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """What the caller gave is wrong; ``problems`` says each thing."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.field or '/'}: {p.message}" for p in self.problems))

    def under(self, prefix: str) -> InvalidInput:
        """The same error, seen from an enclosing document."""
        return InvalidInput([p.under(prefix) for p in self.problems])


class ToolchainUnavailable(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """The compiler or TileLang is missing or broken."""


class ChildFailed(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """A child process of ours broke its protocol (not the candidate's fault)."""


class DeviceUnavailable(ToolchainUnavailable):
    """The device is not there, or has vanished since it was probed."""


class DeviceContended(ChildFailed):
    """Others compute on the device, so that nothing can be measured on it."""


class ArtifactLost(ChildFailed):
    """A compiled library is in no artifact store any more, and a new build does not give the same machine code."""


class ArtifactsUnavailable(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """The artifact store that machines share cannot be read or written now. Nobody's candidate is at fault."""


class ArtifactTooLarge(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """An artifact has more bytes than the artifact store takes."""


class LocksUnusable(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """The folder in which the processes of this host lock devices and cores cannot be used. Nobody is at fault."""


class Cancelled(TunerError):  # noqa: N818 - named for what happened, as the tree shows
    """The caller asked to stop."""

"""What a command ends with: an exit status, and one readable message when it is not zero."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ExitStatus(IntEnum):
    """Exit statuses of every command (docs/reference/cli.md)."""

    OK = 0
    NEGATIVE = 1
    """Everything worked and the answer is no: job failed, case without a winner, lookup miss, reproduce mismatch."""
    BAD_INPUT = 2
    """The command line or the request is wrong; nothing was created."""
    UNREACHABLE = 3
    """No service answers, or one could not be started."""
    INTERRUPTED = 130
    """Ctrl-C: the job was cancelled."""


class CommandError(Exception):
    """Ends a command with a message on stderr."""

    def __init__(self, message: str, *, status: ExitStatus = ExitStatus.BAD_INPUT) -> None:
        self.status = status
        super().__init__(message)


class BadOptionError(CommandError):
    """An option's value is wrong: names the option, the value and what is allowed."""

    def __init__(self, option: str, value: Any, message: str, *, allowed: str | None = None) -> None:
        text = f"{option} {value!r}: {message}"
        super().__init__(text if allowed is None else f"{text} (allowed: {allowed})")

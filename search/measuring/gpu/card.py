"""What a card says of itself beside the driver: clocks, heat, who else uses it. Data, and the Protocol that reads them.

Nothing here changes a card: no clock is locked, no mode is set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

THROTTLED = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Reasons for a lower clock that make a group of samples deviate; a power cap by software is how a card works."""


@dataclass(frozen=True, kw_only=True)
class CardState:
    """One moment of a card. None: the card does not tell."""

    sm_clock_hz: int | None
    memory_clock_hz: int | None
    temperature_celsius: int | None
    throttle_reasons: tuple[str, ...]
    power_watts: float | None = None

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {**vars(self), "throttle_reasons": list(self.throttle_reasons)}


@dataclass(frozen=True, kw_only=True)
class Process:
    """Another process that uses the card for computing."""

    pid: int
    """As the card's driver counts: the host's, also in a container."""
    active: bool | None
    """Whether it kept multiprocessors busy of late; None where the driver does not tell."""


class Card(Protocol):
    """Reads one card. A Fault of it is a DriverFault of kind ``lost``."""

    def state(self) -> CardState:
        """Clocks, heat and throttling now."""
        ...

    def processes(self, *, since_seconds: float) -> tuple[Process, ...]:
        """Every process that computes on the card, this one too; ``active`` within so many seconds before now."""
        ...

    def close(self) -> None:
        """Let go of the library. Idempotent."""
        ...


def foreign(processes: Collection[Process], ours: Collection[int]) -> tuple[Process, ...]:
    """Processes of others that make a measurement worthless: those that compute, or might for all the driver tells."""
    return tuple(process for process in processes if process.pid not in ours and process.active is not False)

"""Tables of what is attached from elsewhere: worker processes, and which of them holds which device.

Stamps of this module are the database's own clock: the hosts of a team do not agree on the time.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from tuner_service.db.models import STAMP, Base

WORKER_ID = String(128)


class Worker(Base):
    """One worker process, for as long as it is remembered."""

    __tablename__ = "workers"
    __table_args__ = (Index(None, "state", "heartbeat_at"),)

    id: Mapped[str] = mapped_column(WORKER_ID, primary_key=True)
    """``host:pid:random``: no two processes ever share one."""
    host: Mapped[str] = mapped_column(String(256))
    pid: Mapped[int]
    place: Mapped[str] = mapped_column(String(128))
    """Where its pid means this process: one boot of one machine, and there one namespace of pids."""
    version: Mapped[str] = mapped_column(String(64))
    devices: Mapped[list[Any]]
    """Ids of the devices that it serves now: their leases are its own, or they need none."""
    compile_keys: Mapped[list[Any]]
    """What it compiles for (``DeviceSpec.compile_key``)."""
    compile_slots: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    """running, draining, full (no space left on its disk: it takes nothing) or gone."""
    started_at: Mapped[str] = mapped_column(STAMP)
    heartbeat_at: Mapped[str] = mapped_column(STAMP)
    queue_worker: Mapped[int | None] = mapped_column(BigInteger)
    """Its number in the queue, by which its tasks are found; None before it took one."""


class DeviceLease(Base):
    """Who may measure on a device: one worker, for as long as it renews."""

    __tablename__ = "device_leases"

    device_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    """The driver's uuid where there is one, else the device's id."""
    worker_id: Mapped[str] = mapped_column(WORKER_ID)
    taken_at: Mapped[str] = mapped_column(STAMP)
    renewed_at: Mapped[str] = mapped_column(STAMP)

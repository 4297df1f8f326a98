"""Devices: the last known DeviceSpec of each, and when it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner_service.db.clock import now
from tuner_service.db.models import Device
from tuner_service.db.upsert import insert
from tuner_service.errors import NotFound


def seen_device(session: Session, document: Mapping[str, Any]) -> None:
    """Stores a DeviceSpec document under its id, seen just now."""
    row = {"kind": document["kind"], "document": dict(document), "heartbeat_at": now()}
    statement = insert(session, Device).values(id=document["id"], **row)
    session.execute(statement.on_conflict_do_update(index_elements=[Device.id], set_=row))


def remember_device(session: Session, document: Mapping[str, Any]) -> None:
    """Stores a DeviceSpec document under its id, unless something is known of that device."""
    row = {"id": document["id"], "kind": document["kind"], "document": dict(document), "heartbeat_at": now()}
    session.execute(insert(session, Device).values(row).on_conflict_do_nothing())


def note_device(session: Session, document: Mapping[str, Any]) -> None:
    """Stores a DeviceSpec document of a device that was seen before, and is not seen now."""
    row = session.get(Device, document["id"])
    if row is not None:
        row.document = dict(document)


def list_devices(session: Session) -> list[dict[str, Any]]:
    """DeviceSpec documents with ``heartbeat_at``, by id."""
    return [
        {**row.document, "heartbeat_at": row.heartbeat_at}
        for row in session.scalars(select(Device).order_by(Device.id))
    ]


def get_device(session: Session, device_id: str) -> dict[str, Any]:
    """One of :func:`list_devices`. NotFound."""
    row = session.get(Device, device_id)
    if row is None:
        raise NotFound("device", device_id)
    return {**row.document, "heartbeat_at": row.heartbeat_at}

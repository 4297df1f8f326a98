"""``/v1/devices``: what is attached, and why it cannot be used if it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse

from search.device.spec import DeviceSpec
from tuner_service.api import kinds, schemas, schemas_operations
from tuner_service.api.body import parse_object, read_body
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import json_body, problems
from tuner_service.api.pages import Cursor, Limit, page_response, whole
from tuner_service.api.problems import ProblemError
from tuner_service.db.queries import devices as device_queries
from tuner_service.db.queries.workers import quarantines
from tuner_service.jobs.quarantine import Quarantines, quarantine_text, read_quarantine_reason

router = APIRouter(prefix="/v1/devices", tags=["devices"])

_QUARANTINE_EXAMPLES = {
    "by hand": {"summary": "Nothing is measured on it until it is released", "value": {"reason": "the fan is loud"}}
}


@router.get(
    "",
    summary="List the attached devices",
    response_model=None,
    responses={200: {"model": schemas.DevicePage}, **problems(kinds.STORAGE_UNAVAILABLE)},
)
def list_devices(request: Request, context: ContextOf, limit: Limit = 1000, cursor: Cursor = None) -> JSONResponse:
    """Each device with its kind, identity, toolchain, availability and what holds it now. Where `timed` is false, as on
    the compile-only `cuda-sm_90`, candidates are built, inspected and simulated, and nothing is timed; such a device is
    looked at when it is asked for, here too. The answer waits for no look: while `probing` is true one goes on, and a
    later answer may say more. The list always fits one page."""
    context.runtime.look()
    probing = not context.runtime.wait_probed(0) or context.runtime.looking
    return page_response(request, whole(_documents(context), probing=probing))


@router.get(
    "/{device_id}",
    summary="One attached device",
    response_model=None,
    responses={
        200: {"model": schemas.DeviceDocument},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def get_device(
    context: ContextOf, device_id: Annotated[str, Path(description="Id of a device.", examples=["cpu:0123456789ab"])]
) -> JSONResponse:
    """What the device is (`identity`, equal for machines that may share winners), what compiles for it (`toolchain`),
    whether it can be used, and the task that holds it now (`lease`). A GPU that vanished stays, with the reason."""
    return JSONResponse(_document(context, device_id))


@router.post(
    "/{device_id}/quarantine",
    summary="Put a device into quarantine",
    response_model=None,
    responses={
        200: {"model": schemas_operations.ChangedDevice},
        **problems(kinds.NOT_FOUND, kinds.BODY_TOO_LARGE, kinds.STORAGE_UNAVAILABLE),
    },
    openapi_extra=json_body("QuarantineRequest", _QUARANTINE_EXAMPLES),
)
def quarantine_device(
    context: ContextOf,
    device_id: Annotated[str, Path(description="Id of a device.", examples=["cpu:0123456789ab"])],
    raw: Annotated[bytes, Depends(read_body)],
) -> JSONResponse:
    """Takes a device out of use until it is released: nothing begins on it, what runs there is stopped and charged to
    nobody, and its jobs wait with the reason. `changed` is false where it is in quarantine already; the reason that
    stands there stays."""
    reason = read_quarantine_reason(parse_object(raw))
    changed = Quarantines(context.database).impose(device_id, reason)
    return JSONResponse({**_document(context, device_id), "changed": changed})


@router.post(
    "/{device_id}/release",
    summary="Release a device from quarantine",
    response_model=None,
    responses={
        200: {"model": schemas_operations.ChangedDevice},
        **problems(kinds.NOT_FOUND, kinds.STORAGE_UNAVAILABLE),
    },
)
def release_device(
    context: ContextOf, device_id: Annotated[str, Path(description="Id of a device.", examples=["cpu:0123456789ab"])]
) -> JSONResponse:
    """Lets a device be used again that is in `quarantine`; jobs that wait for it go on. `changed` is false where it was
    in none."""
    changed = Quarantines(context.database).release(device_id)
    return JSONResponse({**_document(context, device_id), "changed": changed})


def _document(context: Context, device_id: str) -> dict[str, Any]:
    context.runtime.look(device_id)
    for device in _documents(context):
        if device["id"] == device_id:
            return device
    raise ProblemError(kinds.NOT_FOUND, "no device with this id is attached; GET /v1/devices lists them")


def _documents(context: Context) -> list[dict[str, Any]]:
    leases = context.runtime.leases()
    with context.database.read() as session:
        seen = {row["id"]: row["heartbeat_at"] for row in device_queries.list_devices(session)}
        quarantined = quarantines(session)
    return [
        {
            **_usable(device, quarantined.get(device.id)),
            "heartbeat_at": seen.get(device.id),
            "lease": leases.get(device.id),
            "quarantine": quarantined.get(device.id),
        }
        for device in sorted(context.runtime.devices.values(), key=lambda device: device.id)
    ]


def _usable(device: DeviceSpec, quarantine: Mapping[str, str] | None) -> dict[str, Any]:
    """The device's document as the ledger has it at this moment."""
    document = device.document()
    if quarantine is not None:
        document |= {"available": False, "reason": quarantine_text(quarantine)}
    return document

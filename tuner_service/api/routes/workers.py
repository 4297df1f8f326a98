"""``/v1/workers``: the processes that compile and measure for a service on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse

from search.errors import InvalidInput
from tuner_service.api import kinds, schemas_operations
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import problems
from tuner_service.api.pages import DEFAULT_PAGE_ITEMS, Cursor, Limit, page_response
from tuner_service.db.pages import choice, decode_cursor, encode_cursor
from tuner_service.db.queries import workers as worker_queries
from tuner_service.db.queries.queues import tasks_by_worker
from tuner_service.engine.contract import has_begun

router = APIRouter(prefix="/v1/workers", tags=["devices"])

_ORDER = "-started_at"
_SHOWN = (
    "id",
    "host",
    "pid",
    "state",
    "version",
    "devices",
    "compile_keys",
    "compile_slots",
    "started_at",
    "heartbeat_at",
    "silent_seconds",
)


@router.get(
    "",
    summary="List the worker processes",
    response_model=None,
    responses={200: {"model": schemas_operations.WorkerPage}, **problems(kinds.STORAGE_UNAVAILABLE)},
)
def list_workers(
    request: Request,
    context: ContextOf,
    state: Annotated[str | None, Query(description="Only those in this state.")] = None,
    host: Annotated[str | None, Query(description="Only those on this host.")] = None,
    device: Annotated[str | None, Query(description="Only those that offer the device with this id.")] = None,
    limit: Limit = DEFAULT_PAGE_ITEMS,
    cursor: Cursor = None,
) -> JSONResponse:
    """The last started first; each with its state, devices, heartbeat and what it does now. Those that are gone are
    remembered for a week. The embedded engine has none: its process does everything."""
    wrong = choice("/query/state", state, worker_queries.WORKER_STATES)
    if wrong:
        raise InvalidInput(wrong)
    lost_seconds = context.settings.worker_lost_seconds
    with context.database.read() as session:
        rows, tasks = worker_queries.list_workers(session), tasks_by_worker(session)
    found = [_document(row, tasks.get(row["queue_worker"] or 0, ()), lost_seconds) for row in rows]
    filters = (("state", state), ("host", host))
    found = [one for one in found if all(wanted in (None, one[name]) for name, wanted in filters)]
    found = [one for one in found if device is None or device in one["devices"]]
    return page_response(request, _page(found, limit, cursor))


@router.post(
    "/{worker_id}/forget",
    summary="Forget a lost worker",
    response_model=None,
    responses={
        200: {"model": schemas_operations.WorkerDocument},
        **problems(kinds.NOT_FOUND, kinds.CONFLICT, kinds.STORAGE_UNAVAILABLE),
    },
)
def forget_worker(
    context: ContextOf,
    worker_id: Annotated[str, Path(description="Id of a worker.", examples=["host-1:4711:0a1b2c3d"])],
) -> JSONResponse:
    """Removes a worker that is `lost` or `gone`, with its leases: nobody is alerted for it any more, and its devices
    are free at once. The answer is what was known of it. One that lives is refused; one that comes back is listed."""
    lost_seconds = context.settings.worker_lost_seconds
    with context.database.write() as session:
        known = worker_queries.forget_worker(session, worker_id, lost_seconds=lost_seconds)
    return JSONResponse(_document(known, (), lost_seconds))


def _document(row: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], lost_seconds: float) -> dict[str, Any]:
    return {
        **{name: row[name] for name in _SHOWN},
        "state": worker_queries.worker_state(row, lost_seconds=lost_seconds),
        "tasks": [
            {
                "job_id": task["job_id"],
                "queue": task["queue"],
                "device_id": task["device_id"],
                "step": task["payload"]["step"]["step"],
                "begun": has_begun(task),
            }
            for task in tasks
        ],
    }


def _page(found: Sequence[dict[str, Any]], limit: int, cursor: str | None) -> dict[str, Any]:
    """Workers are few: they are read whole, and paged like the lists that are not."""
    left = list(found)
    if cursor is not None:
        started_at, worker_id = decode_cursor(cursor, _ORDER, (str, str))
        left = [one for one in left if (one["started_at"], one["id"]) < (started_at, worker_id)]
    items = left[:limit]
    more = len(left) > limit
    key = (items[-1]["started_at"], items[-1]["id"]) if more else ()
    return {"items": items, "next": encode_cursor(_ORDER, key) if more else None, "total": len(found)}

"""Why a job or an acceptance does not go on: the processes know it, the ledger cannot always be written then."""

from __future__ import annotations

from typing import Any

from tuner_service.api.context import Context
from tuner_service.jobs.states import job_has_ended


def with_waiting(context: Context, document: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a job or an acceptance with ``waiting``: the reason, or null where it does not wait."""
    reason = None
    if not job_has_ended(document["state"]):
        problem = context.database.write_problem
        reason = context.runtime.waiting().get(document["id"]) or (None if problem is None else str(problem))
        reason = reason or _absence(context, document.get("device"))
    return {**document, "waiting": reason}


def _absence(context: Context, device: dict[str, Any] | None) -> str | None:
    """Why a device cannot be used, where nothing has tried to use it for this job yet."""
    known = context.runtime.devices.get(device["id"]) if device else None
    return None if known is None or known.available else f"device {known.id} is unavailable: {known.reason}"

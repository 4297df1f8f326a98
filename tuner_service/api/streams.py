"""A job's progress as server-sent events, resumable: the event id is the ledger's sequence number."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from search.errors import InvalidInput, Problem
from tuner_service.api.context import Context
from tuner_service.db.queries import jobs as job_queries

PAGE_EVENTS = 500
KEEPALIVE_SECONDS = 15.0
TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
_SEQUENCE = re.compile(r"[0-9]{1,18}")


def parse_last_event_id(text: str | None) -> int:
    """The sequence number to resume after; 0 for none. Raises InvalidInput when it is not one of ours."""
    if text is None or text == "":
        return 0
    if not _SEQUENCE.fullmatch(text):
        raise InvalidInput(
            [
                Problem(
                    field="/header/Last-Event-ID",
                    value=text,
                    message="this is not the id of an event of this service",
                    allowed="the id of the last event that was received, a whole number",
                )
            ]
        )
    return int(text)


async def job_events(context: Context, job_id: str, after: int) -> AsyncIterator[bytes]:
    """Every event after sequence number ``after``, then new ones as they come, until the job has ended.

    The last event is ``end``; comments keep idle connections open. Ends early when the service stops: the reader
    resumes with ``Last-Event-ID``.
    """
    spoke = time.monotonic()
    yield format_sse_event(retry=1000)
    while not context.closing.is_set():
        # State before events: whatever was recorded before the job ended is then among the events.
        state = await anyio.to_thread.run_sync(_state, context, job_id)
        events = await anyio.to_thread.run_sync(_events_after, context, job_id, after)
        for event in events:
            after = event["sequence"]
            yield format_sse_event(data_str=json.dumps(event), event=event["kind"], id=str(after))
        if events:
            spoke = time.monotonic()
        elif state in TERMINAL_STATES:
            yield format_sse_event(data_str=json.dumps({"state": state}), event="end", id=str(after))
            return
        elif time.monotonic() - spoke > KEEPALIVE_SECONDS:
            spoke = time.monotonic()
            yield KEEPALIVE_COMMENT
        if len(events) < PAGE_EVENTS:
            await anyio.sleep(context.settings.stream_poll_seconds)


def nothing_left(context: Context, job_id: str, after: int) -> bool:
    """Whether the job has ended and has no event after ``after``: a browser must then stop reconnecting (204)."""
    return _state(context, job_id) in TERMINAL_STATES and after > 0 and not _events_after(context, job_id, after)


def _state(context: Context, job_id: str) -> str:
    with context.database.read() as session:
        return job_queries.job_state(session, job_id)


def _events_after(context: Context, job_id: str, after: int) -> list[dict[str, Any]]:
    with context.database.read() as session:
        return job_queries.list_job_events(session, job_id, after=after, limit=PAGE_EVENTS)

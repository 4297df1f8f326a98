"""JSON log lines on stderr, each with the ids of what it belongs to: request, job, trials, task, device, worker."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

request_id_variable: ContextVar[str | None] = ContextVar("request_id", default=None)
_ids_variable: ContextVar[Mapping[str, Any]] = ContextVar("log_ids", default=MappingProxyType({}))

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
MAX_MESSAGE_CHARACTERS = 4000
"""A log line never carries a whole request body or compiler log."""


@contextmanager
def log_ids(**ids: Any) -> Iterator[None]:
    """Every line that this thread logs within the block carries these ids (``job_id=…``); None leaves one out."""
    known = {name: value for name, value in ids.items() if value is not None}
    token = _ids_variable.set({**_ids_variable.get(), **known})
    try:
        yield
    finally:
        _ids_variable.reset(token)


def accept_request_id(offered: str | None) -> str:
    """The caller's request id if it is short and plain, else a new random one (a log line must not be forgeable)."""
    if offered is not None and _SANE_REQUEST_ID.fullmatch(offered):
        return offered
    return "req_" + secrets.token_hex(8)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, ids, the fields given as ``extra``, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE_CHARACTERS],
        }
        request_id = request_id_variable.get()
        if request_id is not None:
            line["request_id"] = request_id
        line.update(_ids_variable.get())
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD_FIELDS})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure_logging(level: str) -> None:
    """Send every logger's records of ``level`` and above to stderr as JSON; stdout stays free for answers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"  # our own middleware writes the access lines
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Its pool reports every try to connect; that the database is away is said once, by whoever needs it.
    logging.getLogger("psycopg").setLevel(logging.ERROR)

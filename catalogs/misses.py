"""Misses become tuning jobs: a bounded queue that a daemon thread empties, so that no caller waits or fails.

Every process has its own queue and thread: after a fork the child starts with an empty queue.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from typing import Any

from catalogs.canonical import canonical_json
from catalogs.client import Source
from catalogs.device import this_device
from catalogs.errors import CatalogError
from catalogs.lookup import Miss

_LOG = logging.getLogger("catalogs")
_WAITING_LIMIT = 256
_REMEMBERED_LIMIT = 4096
_TRIES = 5
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Process:
    """The queue of one process."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.start_once = threading.Lock()
        self.asked: set[str] = set()
        self.open = 0
        """Jobs that were queued and not yet sent or given up (may be off by one while a thread is changing it)."""
        self.stop_pause = threading.Event()


class MissQueue:
    """Jobs for what lookups missed, each asked for once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._by_process: dict[int, _Process] = {}

    def offer(self, miss: Miss, program: Any = None) -> bool:
        """Queue the job of a miss; whether it was queued. Never blocks and never raises.

        Not queued: what was asked for before, a device that is not this one, and anything while the queue is full.
        ``program``: the document of a kernel that is not built in.
        """
        try:
            return self._offer(miss, program)
        except Exception:
            _LOG.warning("a lookup's miss was not queued", exc_info=True)
            return False

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything queued was sent or given up; whether that happened in time."""
        ends = time.monotonic() + timeout_seconds
        process = self._by_process.get(os.getpid())
        while process is not None and process.open > 0:
            if time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True

    def _offer(self, miss: Miss, program: Any) -> bool:
        key = miss.query.key
        device = this_device()
        if key.device != device.digest or any(name.startswith("dim") and name[3:].isdecimal() for name in key.dims):
            return False
        case: dict[str, Any] = {"dims": dict(key.dims), "dtypes": dict(key.dtypes), "params": dict(miss.query.params)}
        case |= {"kernel": miss.query.kernel} if program is None else {"program": program}
        job = {
            "cases": [case],
            "device": f"{device.kind}:{device.digest[:12]}",
            "labels": {"origin": "catalog-miss"},
        }
        body = canonical_json(job)
        name = hashlib.sha256(body).hexdigest()
        process = self._by_process.setdefault(os.getpid(), _Process())
        if name in process.asked or process.open >= _WAITING_LIMIT or len(process.asked) >= _REMEMBERED_LIMIT:
            return False
        process.asked.add(name)
        process.open += 1
        process.waiting.put(body)
        if process.start_once.acquire(blocking=False):
            threading.Thread(target=self._send_all, args=(process,), name="catalog-misses", daemon=True).start()
        return True

    def _send_all(self, process: _Process) -> None:
        while True:
            body = process.waiting.get()
            try:
                self._send(body)
            except Exception:
                _LOG.warning("a lookup's miss was not sent", exc_info=True)
            process.open -= 1

    def _send(self, body: bytes) -> None:
        name = hashlib.sha256(body).hexdigest()
        pause = _FIRST_PAUSE_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                status = self._source.post_job(body, idempotency_key=f"miss-{name}")
            except CatalogError as error:
                problem = str(error)
            else:
                if status < 300:
                    return
                problem = f"the service answered {status}"
                if status not in _BUSY:
                    break
            if left:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        _LOG.warning("no job for a lookup's miss: %s", problem)

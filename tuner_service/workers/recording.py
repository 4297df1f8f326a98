"""Events of a task on their way to the ledger: what comes while earlier ones are written is written together."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from search.events import Event


class Recording:
    """Writes in a thread of its own, so that who builds need not wait for the database. A context: the block ends when
    everything is written.

    An event waits for no other: as soon as ``write`` returns it gets all that came meanwhile, in their order. A
    compiler's call answers for a dozen candidates at once, and they then take two transactions.
    """

    def __init__(self, write: Callable[[Sequence[Event]], None]) -> None:
        """What ``write`` raises is raised by the next :meth:`put`, or by the end of the block; nothing is written then
        any more."""
        self._write = write
        self._changed = threading.Condition()
        self._waiting: list[Event] = []
        self._ended = False
        self._error: BaseException | None = None
        context = contextvars.copy_context()  # whose ids its log lines carry
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="recording", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and self._error is not error:
            raise self._error

    def put(self, event: Event) -> None:
        """Has an event written soon."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._waiting.append(event)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                events, self._waiting = self._waiting, []
            if not events:
                return
            try:
                self._write(events)
            except BaseException as error:
                with self._changed:
                    self._error = error
                return

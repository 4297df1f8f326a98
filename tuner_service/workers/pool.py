"""A pool of things that own children: each serves one task at a time, is kept while it is idle, and closed when the
pool rests or ends. What was closed is never lent again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What a pool holds."""

    def close(self) -> None:
        """Ends its children. Idempotent."""
        ...


Held = TypeVar("Held", bound=Closable)


class Pool(Generic[Held]):
    """Thread-safe. Things of one kind stand in for one another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[Held]] = {}
        self._busy: list[Held] = []
        self._closed = False

    @contextmanager
    def lent(self, kind: Hashable, make: Callable[[], Held]) -> Iterator[Held]:
        """An idle one of that kind, else a new one; idle again when the block ends, however it ends, unless the pool
        was closed meanwhile."""
        with self._lock:
            idle = self._idle.get(kind)
            one = idle.pop() if idle else None
        one = make() if one is None else one
        try:
            with self._in_use(one):
                yield one
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.setdefault(kind, []).append(one)
            if not keep:
                one.close()

    @contextmanager
    def single(self, make: Callable[[], Held]) -> Iterator[Held]:
        """A new one for this block alone, closed when it ends."""
        one = make()
        try:
            with self._in_use(one):
                yield one
        finally:
            one.close()

    def rest(self, which: Callable[[Hashable], bool] = lambda kind: True) -> None:
        """Closes those that do nothing now, of the kinds asked for."""
        with self._lock:
            idle = [one for kind in filter(which, tuple(self._idle)) for one in self._idle.pop(kind)]
        for one in idle:
            one.close()

    def close(self) -> None:
        """Closes all of them, those in use too: whoever uses them must have been told to stop."""
        with self._lock:
            self._closed = True
            busy = list(self._busy)
        self.rest()
        for one in busy:
            one.close()

    @contextmanager
    def _in_use(self, one: Held) -> Iterator[None]:
        with self._lock:
            self._busy.append(one)
        try:
            yield
        finally:
            with self._lock:
                self._busy.remove(one)

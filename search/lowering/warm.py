"""Lowering children between two uses. A start imports TileLang, which takes seconds; an idle child waits for the next
build of this process, for a while, and is then ended."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Hashable

from search.children.child import Child

IDLE_SECONDS = 30.0


class WarmChildren:
    """At most one idle child for each key: whatever a child was started with. Thread-safe."""

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: dict[Hashable, tuple[Child, threading.Timer]] = {}
        self._owner_pid = os.getpid()
        atexit.register(self.close)

    def take(self, key: Hashable) -> Child | None:
        """A living child that was kept for the key, and is the caller's now; None without one."""
        with self._lock:
            self._disown()
            child, timer = self._idle.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        if child is not None and not child.alive:
            child.kill()
            return None
        return child

    def keep(self, key: Hashable, child: Child) -> None:
        """Keep a child that has answered all it was asked; ends one that was kept before for the key."""
        timer = threading.Timer(self._idle_seconds, self._end, (key, child))
        timer.daemon = True
        with self._lock:
            self._disown()
            former = self._idle.get(key)
            self._idle[key] = (child, timer)
        timer.start()
        if former is not None:
            former[1].cancel()
            former[0].kill()

    def close(self) -> None:
        """End those that are idle."""
        with self._lock:
            self._disown()
            idle = list(self._idle.values())
            self._idle.clear()
        for child, timer in idle:
            timer.cancel()
            child.kill()

    def _disown(self) -> None:
        """In a fork of the process that kept them: they are not its children."""
        if self._owner_pid != os.getpid():
            self._idle, self._owner_pid = {}, os.getpid()

    def _end(self, key: Hashable, child: Child) -> None:
        with self._lock:
            if self._idle.get(key, (None, None))[0] is not child:  # taken, or another by now
                return
            del self._idle[key]
        child.kill()


WARM = WarmChildren()

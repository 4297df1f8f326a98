"""The compile-only devices of a service: named from the start, looked at when somebody wants them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from search.device.probe import compile_only
from search.device.spec import DeviceSpec
from search.errors import Cancelled

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 30.0
"""What was found unavailable is believed for so long."""
Look = Callable[[Sequence[str]], Sequence[DeviceSpec]]
"""Device names → what they are now. Takes a second, or several where a compiler hangs."""


class CompileOnlyDevices:
    """What is known of them. Thread-safe: one thread looks, the others wait for what it finds.

    A service that nobody asks for CUDA code must not hash and try a CUDA compiler at every start.
    """

    def __init__(self, names: Sequence[str], look: Look) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._known = {name: _not_yet(name) for name in names}
        self._looked_seconds: float | None = None
        """Monotonic time of the last look; None when it must not be believed any more."""

    @property
    def known(self) -> Mapping[str, DeviceSpec]:
        """Every one of them by id, as last seen: unavailable until somebody looked."""
        return self._known

    def look(self, name: str | None = None) -> None:
        """Looks at them, unless what is known of the named one (of all) still holds.

        What was usable is believed until :meth:`forget`, and what was not for half a minute.
        """
        with self._lock:
            if not self._known or self._holds([self._known[name]] if name else list(self._known.values())):
                return
            try:
                found = {spec.id: spec for spec in self._look(tuple(self._known))}
            except Cancelled:
                return
            except Exception as error:
                log.exception("compile-only devices could not be looked at")
                reason = f"it could not be looked at: {type(error).__name__}: {error}"
                found = {name: _unavailable(name, reason) for name in self._known}
            self._known = {name: found.get(name, known) for name, known in self._known.items()}
            self._looked_seconds = time.monotonic()

    def forget(self) -> None:
        """Something of theirs broke: the next look is a new one."""
        self._looked_seconds = None

    def _holds(self, asked: Sequence[DeviceSpec]) -> bool:
        if self._looked_seconds is None:
            return False
        if all(spec.available for spec in asked):
            return True
        return time.monotonic() - self._looked_seconds < LOOK_AGAIN_SECONDS


def _not_yet(name: str) -> DeviceSpec:
    return _unavailable(name, "nobody has asked for it yet, so it was not looked at; GET /v1/devices looks")


def _unavailable(name: str, reason: str) -> DeviceSpec:
    return compile_only(name, toolchain={}, unavailable=reason)

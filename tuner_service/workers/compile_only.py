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
    """What is known of them. One thread looks (``workers.devices``), and any may ask what is known.

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

    def holds(self, name: str | None = None) -> bool:
        """Whether what is known of the named one (of all) is to be believed.

        What was usable is believed until :meth:`forget`, and what was not for half a minute.
        """
        known = self._known
        asked = list(known.values()) if name is None else [known[name]]
        looked_seconds = self._looked_seconds
        if not asked:
            return True
        if looked_seconds is None:
            return False
        return all(spec.available for spec in asked) or time.monotonic() - looked_seconds < LOOK_AGAIN_SECONDS

    def look(self, name: str | None = None) -> None:
        """Looks at them, unless what is known of the named one (of all) still holds. Takes seconds."""
        with self._lock:
            if self.holds(name):
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


def _not_yet(name: str) -> DeviceSpec:
    return _unavailable(name, "not looked at yet: that is done when somebody asks and no measurement needs quiet")


def _unavailable(name: str, reason: str) -> DeviceSpec:
    return compile_only(name, toolchain={}, unavailable=reason)

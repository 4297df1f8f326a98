"""At most one measurement per device, host-wide: an exclusive ``flock`` on a file named after the device.

The lock belongs to the open file, which children inherit. When this process dies in the middle of a measurement, the
device stays locked until the last process of that measurement is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from search.errors import Cancelled, LocksUnusable

LOCK_DIR_VARIABLE = "TUNER_LOCK_DIR"
_POLL_SECONDS = 0.05


def default_lock_dir() -> Path:
    """``TUNER_LOCK_DIR``, else one folder in the system's temporary directory that all users share."""
    named = os.environ.get(LOCK_DIR_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / "tuner-device-locks"


def lock_path(name: str, *, lock_dir: Path | None = None) -> Path:
    """The file that stands for a name; its folder is made when it is not there."""
    folder = lock_dir or default_lock_dir()
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)  # like /tmp: whoever measures on this host must be able to take part
    return folder / (re.sub(r"[^A-Za-z0-9.-]", "_", name) + ".lock")


def open_lock(name: str, *, lock_dir: Path | None = None) -> int:
    """A new descriptor of the file that stands for a name, for ``flock``. No child inherits it unless it is passed.

    LocksUnusable.
    """
    try:
        return _opened(lock_path(name, lock_dir=lock_dir))
    except OSError as error:
        folder = lock_dir or default_lock_dir()
        raise LocksUnusable(f"the lock folder {folder} ({LOCK_DIR_VARIABLE}) cannot be used: {error}") from error


def _opened(path: Path) -> int:
    # No O_CREAT on an existing file: a sticky shared folder refuses it for another user's file.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
        return descriptor


class DeviceLock:
    """The lock of one device. One holder per object: two objects exclude each other, in one process or in many."""

    def __init__(self, device_id: str, *, lock_dir: Path | None = None) -> None:
        self._device_id, self._lock_dir = device_id, lock_dir
        self._fd = open_lock(device_id, lock_dir=lock_dir)
        self.path = lock_path(device_id, lock_dir=lock_dir)

    def fileno(self) -> int:
        """Descriptor for children to inherit."""
        return self._fd

    def try_acquire(self) -> bool:
        """Take the lock if it is free. LocksUnusable when its file went away and cannot be made again."""
        if not self._try_flock():
            return False
        if self._is_the_file_of_its_name():
            return True
        fresh = open_lock(self._device_id, lock_dir=self._lock_dir)
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)
        return self._try_flock()

    def release(self) -> None:
        """Give the lock back, also on behalf of children that inherited it."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def held(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for the lock and hold it inside the block. Raises Cancelled when asked to stop while waiting."""
        while not self.try_acquire():
            if cancelled():
                raise Cancelled(f"cancelled while waiting for {self.path.name}")
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            self.release()

    def _try_flock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_the_file_of_its_name(self) -> bool:
        """Not when the folder was removed, or emptied, since it was opened: whoever comes now locks another file."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the descriptor (children that inherited it keep theirs)."""
        os.close(self._fd)


class CoreTurns:
    """The core that a device's measuring child is pinned to: devices of one host that share one take turns.

    One holder per object. Who waits stands at a gate, and a holder that comes back at once stands behind them: what
    measures candidate after candidate would keep the others out for ever otherwise.
    """

    def __init__(self, cpus: Sequence[int], *, lock_dir: Path | None = None) -> None:
        """``cpus``: ids of the cores, of which the first is used; none: there is nothing to share."""
        names = [f"core-{cpu}{part}" for cpu in cpus[:1] for part in ("-next", "")]
        self._locks = [DeviceLock(name, lock_dir=lock_dir) for name in names]

    @contextlib.contextmanager
    def held(self, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for the turn and keep it inside the block. Raises Cancelled when asked to stop while waiting."""
        if not self._locks:
            yield
            return
        gate, core = self._locks
        with contextlib.ExitStack() as turn:
            with gate.held(cancelled):
                turn.enter_context(core.held(cancelled))
            yield

    def close(self) -> None:
        """Close the descriptors."""
        for lock in self._locks:
            lock.close()

"""The thread that looks at devices goes on whatever happens: nobody else would find out that one came back."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from search.device.probe import compile_only
from search.device.spec import DeviceSpec
from search.errors import LocksUnusable
from tuner_service.workers import devices as module
from tuner_service.workers.compile_only import CompileOnlyDevices
from tuner_service.workers.devices import Devices

PATIENCE_SECONDS = 20.0


def test_a_host_whose_locks_cannot_be_asked_is_looked_at_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_RETRY_SECONDS", 0.0)
    stopping, looked = threading.Event(), threading.Event()
    asked: list[None] = []

    @contextmanager
    def undisturbed() -> Iterator[bool]:
        asked.append(None)
        if len(asked) == 1:
            raise LocksUnusable("the lock folder cannot be used")
        yield True

    def probe(_work: Path, _known: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
        looked.set()
        return [compile_only("cuda-sm_90", toolchain={}, unavailable="nothing is here")]

    devices = Devices(
        database=None,
        work=tmp_path,
        probe=probe,
        compile_only=CompileOnlyDevices((), lambda names: ()),
        stopping=stopping,
    )
    devices.doubt(toolchains=False)
    arguments = (undisturbed, lambda device_id: None, lambda: None)
    thread = threading.Thread(target=devices.watch, args=arguments, daemon=True)
    thread.start()
    assert looked.wait(PATIENCE_SECONDS)
    stopping.set()
    devices.stop()
    thread.join(PATIENCE_SECONDS)
    assert len(asked) > 1

"""One measurement per device: between objects, threads and processes, and beyond the death of the holder."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from search.device.probe import probe_cpu
from search.errors import Cancelled, LocksUnusable
from search.measuring.device_lock import LOCK_DIR_VARIABLE, CoreTurns, DeviceLock, default_lock_dir
from search.measuring.gpu.rehearsed import rehearsed
from search.measuring.run import Measurer


def test_two_objects_exclude_each_other(tmp_path) -> None:
    mine, theirs = DeviceLock("cpu:1", lock_dir=tmp_path), DeviceLock("cpu:1", lock_dir=tmp_path)
    with mine.held():
        assert not theirs.try_acquire()
    assert theirs.try_acquire()
    assert not mine.try_acquire()
    theirs.release()
    mine.close()
    theirs.close()


def test_devices_are_independent_and_names_are_made_safe(tmp_path) -> None:
    one, other = DeviceLock("gpu/../../x", lock_dir=tmp_path), DeviceLock("gpu:2", lock_dir=tmp_path)
    assert one.path.parent == other.path.parent == tmp_path
    assert one.try_acquire()
    assert other.try_acquire()
    one.close()
    other.close()


def test_the_lock_is_given_back_when_the_block_fails(tmp_path) -> None:
    lock, other = DeviceLock("d", lock_dir=tmp_path), DeviceLock("d", lock_dir=tmp_path)
    with pytest.raises(KeyError), lock.held():
        raise KeyError
    assert other.try_acquire()
    lock.close()
    other.close()


def test_locks_of_a_folder_that_was_removed_are_those_of_the_new_one(tmp_path) -> None:
    folder = tmp_path / "locks"
    old = DeviceLock("d", lock_dir=folder)
    shutil.rmtree(folder)
    new = DeviceLock("d", lock_dir=folder)
    assert old.try_acquire()
    assert not new.try_acquire()
    old.release()
    assert new.try_acquire()
    assert not old.try_acquire()
    for lock in (old, new):
        lock.close()


def test_waiting_can_be_cancelled(tmp_path) -> None:
    holder, waiter = DeviceLock("d", lock_dir=tmp_path), DeviceLock("d", lock_dir=tmp_path)
    with holder.held(), pytest.raises(Cancelled), waiter.held(lambda: True):
        pytest.fail("the lock was held by another")
    holder.close()
    waiter.close()


def test_a_waiter_gets_its_turn(tmp_path) -> None:
    holder, waiter = DeviceLock("d", lock_dir=tmp_path), DeviceLock("d", lock_dir=tmp_path)
    entered = threading.Event()

    def wait() -> None:
        with waiter.held():
            entered.set()

    assert holder.try_acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    assert not entered.wait(0.2)
    holder.release()
    assert entered.wait(30)
    thread.join()
    holder.close()
    waiter.close()


HOLDER = """
import os, subprocess, sys
from pathlib import Path
from search.measuring.device_lock import DeviceLock
lock = DeviceLock("d", lock_dir=Path(sys.argv[1]))
assert lock.try_acquire()
orphan = subprocess.Popen(["sleep", "1000"], pass_fds=(lock.fileno(),), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
print(orphan.pid, flush=True)
os._exit(0)
"""


def test_an_orphan_keeps_the_device_locked(tmp_path) -> None:
    """The holder dies at once; its child, which may still be measuring, inherited the descriptor."""
    done = subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)], capture_output=True, text=True, check=True)
    orphan = int(done.stdout)
    lock = DeviceLock("d", lock_dir=tmp_path)
    try:
        assert not lock.try_acquire()
    finally:
        os.kill(orphan, signal.SIGKILL)
    with lock.held():
        pass
    lock.close()


def test_release_counts_for_children_that_inherited_the_lock(tmp_path) -> None:
    lock, other = DeviceLock("d", lock_dir=tmp_path), DeviceLock("d", lock_dir=tmp_path)
    assert lock.try_acquire()
    with subprocess.Popen(["sleep", "1000"], pass_fds=(lock.fileno(),)) as child:
        assert not other.try_acquire()
        lock.release()
        assert other.try_acquire()
        child.kill()
    lock.close()
    other.close()


def test_the_folder_is_shared_by_all_users(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(LOCK_DIR_VARIABLE, str(tmp_path / "locks"))
    assert default_lock_dir() == tmp_path / "locks"
    lock = DeviceLock("d")
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    lock.close()
    monkeypatch.delenv(LOCK_DIR_VARIABLE)
    assert default_lock_dir().name == "tuner-device-locks"


def test_a_planted_link_is_not_followed(tmp_path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "locks").mkdir()
    Path(tmp_path / "locks" / "d.lock").symlink_to(target)
    with pytest.raises(LocksUnusable, match="symbolic links"):
        DeviceLock("d", lock_dir=tmp_path / "locks")


def test_devices_that_measure_on_one_core_take_turns_however_eager_they_are(tmp_path: Path) -> None:
    order: list[str] = []
    ended: list[str] = []

    def somebody_waits() -> bool:
        gate = DeviceLock("core-3-next", lock_dir=tmp_path)
        free = gate.try_acquire()
        gate.close()
        return not free

    def measure(name: str) -> None:
        core = CoreTurns([3], lock_dir=tmp_path)
        for _ in range(4):
            with core.held():
                order.append(name)
                while not somebody_waits() and not ended:
                    time.sleep(0.002)
                order.append(name)
        ended.append(name)
        core.close()

    threads = [threading.Thread(target=measure, args=(name,)) for name in ("cpu", "gpu")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    turns = order[::2]
    assert turns == order[1::2], "one at a time"
    assert turns in (["cpu", "gpu"] * 4, ["gpu", "cpu"] * 4)


def test_cores_are_independent_and_none_is_nobodys(tmp_path: Path) -> None:
    one, other, none = (CoreTurns(cpus, lock_dir=tmp_path) for cpus in ([3], [2], []))
    same = CoreTurns([3], lock_dir=tmp_path)
    with one.held(), other.held(), none.held(), pytest.raises(Cancelled), same.held(lambda: True):
        pytest.fail("the core was another's")


def test_a_measurer_waits_for_its_core(tmp_path: Path, kernel_case) -> None:
    device = replace(probe_cpu(toolchain={}, unavailable=None), target="cuda", uuid="GPU-1", measure_cpus=(3,))
    with Measurer(device, tmp_path / "work", lock_dir=tmp_path / "locks", children=rehearsed()) as measurer:
        core = CoreTurns([3], lock_dir=tmp_path / "locks")
        with core.held(), pytest.raises(Cancelled, match="core-3"):
            measurer.copy(kernel_case("softmax"), 1024, cancelled=lambda: True)
        core.close()

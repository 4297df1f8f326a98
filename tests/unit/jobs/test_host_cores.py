"""The compile cores of a host are shared out among its worker processes, one task each."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tuner_service.workers.host_cores import HostCores

PATIENCE_SECONDS = 20.0
OTHER_PROCESS = """
import sys
from pathlib import Path
from tuner_service.workers.host_cores import HostCores
with HostCores(lambda: (0,), lock_dir=Path(sys.argv[1])).one(stopping=lambda: False):
    print("in", flush=True)
    sys.stdin.read()
"""


def never() -> bool:
    return False


def test_as_many_go_on_as_there_are_cores(tmp_path: Path) -> None:
    cores = HostCores(lambda: (0, 2), lock_dir=tmp_path)
    looks = iter([False, False, True])
    with cores.one(stopping=never) as first, cores.one(stopping=never) as second:
        assert (first, second) == (True, True)
        with cores.one(stopping=lambda: next(looks)) as third:
            assert not third, "it looked twice, and was told to stop"
    with cores.one(stopping=never) as again:
        assert again


def test_a_core_that_becomes_free_goes_to_one_that_waits(tmp_path: Path) -> None:
    cores = HostCores(lambda: (0,), lock_dir=tmp_path)
    waits, entered = threading.Event(), threading.Event()

    def looked() -> bool:
        waits.set()
        return False

    def other() -> None:
        with cores.one(stopping=looked):
            entered.set()

    with cores.one(stopping=never):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        assert waits.wait(PATIENCE_SECONDS)
        assert not entered.is_set()
    assert entered.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)


def test_processes_with_cores_of_their_own_do_not_wait_for_each_other(tmp_path: Path) -> None:
    one, other = (HostCores(lambda core=core: (core,), lock_dir=tmp_path) for core in (0, 1))
    with one.one(stopping=never) as first, other.one(stopping=never) as second:
        assert (first, second) == (True, True)


def test_nobody_waits_where_no_core_is_known(tmp_path: Path) -> None:
    cores = HostCores(tuple, lock_dir=tmp_path)
    with cores.one(stopping=never) as first, cores.one(stopping=never) as second:
        assert (first, second) == (True, True)


def test_one_that_keeps_its_core_for_long_holds_nobody_up(tmp_path: Path) -> None:
    """It may have been stopped in the middle of a task, and nothing is broken by two on one core."""
    with (
        HostCores(lambda: (0,), lock_dir=tmp_path).one(stopping=never),
        HostCores(lambda: (0,), lock_dir=tmp_path, patience_seconds=0.05).one(stopping=never) as entered,
    ):
        assert entered


def test_who_waited_in_vain_once_does_not_wait_so_long_again_until_a_core_is_free(tmp_path: Path) -> None:
    asked: list[str] = []

    def known() -> tuple[int, ...]:
        asked.append("look")
        return (0,)

    cores = HostCores(known, lock_dir=tmp_path, patience_seconds=0.1)
    with HostCores(lambda: (0,), lock_dir=tmp_path).one(stopping=never):
        with cores.one(stopping=never):
            first = len(asked)
        for _ in range(3):
            with cores.one(stopping=never) as entered:
                assert entered
        assert (first > 1, len(asked)) == (True, first + 3), "one look each"
    with cores.one(stopping=never), cores.one(stopping=never):
        assert len(asked) > first + 5, "a core was free meanwhile, so that it is worth waiting again"


def test_of_those_that_wait_in_a_process_one_looks(tmp_path: Path) -> None:
    lookers: set[int] = set()
    told = threading.Event()
    waiting = threading.Semaphore(0)

    def looked() -> tuple[int, ...]:
        lookers.add(threading.get_ident())
        return (0,)

    def asked() -> bool:
        waiting.release()
        return told.is_set()

    def wait() -> None:
        with cores.one(stopping=asked):
            pass

    cores = HostCores(looked, lock_dir=tmp_path)
    with HostCores(lambda: (0,), lock_dir=tmp_path).one(stopping=never):
        threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(12):
            assert waiting.acquire(timeout=PATIENCE_SECONDS)
        looked_so_far = set(lookers)
        told.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert len(looked_so_far) == 1


def test_a_killed_process_leaves_its_core(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    cores = HostCores(lambda: (0,), lock_dir=tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        looks = iter([False, True])
        with cores.one(stopping=lambda: next(looks)) as entered:
            assert not entered
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE_SECONDS)
        with cores.one(stopping=never) as entered:
            assert entered

"""The gate of a host: several processes agree whether it compiles or is quiet."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner_service.workers.host_quiet import HostQuietGate

PATIENCE_SECONDS = 20.0
OTHER_PROCESS = """
import sys
from pathlib import Path
from tuner_service.workers.host_quiet import HostQuietGate
gate = HostQuietGate(lock_dir=Path(sys.argv[1]))
with getattr(gate, sys.argv[2])(stopping=lambda: False):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def gate(tmp_path: Path) -> HostQuietGate:
    return HostQuietGate(lock_dir=tmp_path)


def in_thread(enter: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return thread


def never() -> bool:
    return False


def test_compiles_go_together_and_so_do_quiet_ones(gate: HostQuietGate) -> None:
    with gate.compiling(stopping=never) as first, gate.compiling(stopping=never) as second:
        assert first
        assert second
    with gate.quietly(stopping=never) as first, gate.quietly(stopping=never) as second:
        assert first
        assert second


def test_a_quiet_one_that_waits_lets_no_compile_begin(gate: HostQuietGate) -> None:
    order: list[str] = []
    waits, leave = threading.Event(), threading.Event()

    def looked() -> bool:
        waits.set()
        return False

    def quiet() -> None:
        with gate.quietly(stopping=looked):
            order.append("quiet")
            leave.wait(PATIENCE_SECONDS)

    def compile_() -> None:
        with gate.compiling(stopping=never):
            order.append("compile")

    with gate.compiling(stopping=never):
        measuring = in_thread(quiet)
        assert waits.wait(PATIENCE_SECONDS)  # it has announced itself by now
        with gate.compiling(stopping=lambda: True) as entered:
            assert not entered
        compiling = in_thread(compile_)
        assert order == []
    leave.set()
    for thread in (measuring, compiling):
        thread.join(PATIENCE_SECONDS)
    assert order == ["quiet", "compile"]


def test_one_that_is_told_to_stop_gives_up_and_leaves_nothing_locked(gate: HostQuietGate) -> None:
    with gate.compiling(stopping=never), gate.quietly(stopping=lambda: True) as entered:
        assert not entered
    with gate.quietly(stopping=never), gate.compiling(stopping=lambda: True) as entered:
        assert not entered
    with gate.compiling(stopping=never) as entered:
        assert entered


@pytest.mark.parametrize("group", ["quietly", "compiling"])
def test_a_killed_process_leaves_nothing_locked(gate: HostQuietGate, tmp_path: Path, group: str) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), group]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        opposite = gate.compiling if group == "quietly" else gate.quietly
        looks = iter([False, True])
        with opposite(stopping=lambda: next(looks)) as entered:
            assert not entered
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE_SECONDS)
        with opposite(stopping=never) as entered:
            assert entered


def test_the_overlap_watch_sees_builds_of_others_that_came_and_went(gate: HostQuietGate, tmp_path: Path) -> None:
    other = HostQuietGate(lock_dir=tmp_path)
    overlapped = gate.overlap_watch()
    with other.compiling(stopping=never):
        assert not overlapped(), "an idle slot that looks for work compiles nothing"
        with other.building():
            assert overlapped()
    assert overlapped()  # until after the last question
    assert not overlapped()
    with other.compiling(stopping=never), other.building():
        pass
    assert overlapped()
    assert not overlapped()


def test_work_that_disturbs_begins_only_where_nothing_is_quiet(gate: HostQuietGate) -> None:
    with gate.undisturbed() as free:
        assert free
        with gate.quietly(stopping=lambda: True) as entered:
            assert not entered
    with gate.quietly(stopping=never), gate.undisturbed() as free:
        assert not free
    with gate.quietly(stopping=never) as entered:
        assert entered

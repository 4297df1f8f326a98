"""Commands end in time and leave nothing behind, whatever they start and whatever they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from search.errors import Cancelled, ChildFailed, ToolchainUnavailable
from search.lowering.command import KEPT_BYTES, run_command

PATIENCE_SECONDS = 30.0


def shell(text: str, **options: object) -> object:
    return run_command(["/bin/sh", "-c", text], **{"timeout_seconds": PATIENCE_SECONDS, **options})  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in ("Z", "X")
    except OSError:
        return True


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_pid(path: Path) -> int:
    wait(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def test_what_it_prints_and_how_it_ends() -> None:
    done = shell("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.failure) == ("out\n", "err\n", None)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("exit 3", "exit status 3, and it printed nothing"),
        ("echo wrong >&2; exit 4", "exit status 4: wrong"),
        ("echo only here; exit 1", "exit status 1: only here"),
        ("kill -SEGV $$", "killed by SIGSEGV, and it printed nothing"),
    ],
)
def test_a_failure_names_status_and_output(text: str, failure: str) -> None:
    assert shell(text).failure == failure


def test_only_the_end_of_long_output_is_kept() -> None:
    done = run_command(
        [sys.executable, "-c", "import sys; sys.stdout.write('x' * 3_000_000 + 'end'); sys.exit(1)"],
        timeout_seconds=PATIENCE_SECONDS,
    )
    assert len(done.stdout) == KEPT_BYTES
    assert done.stdout.endswith("xend")
    assert done.failure is not None
    assert len(done.failure) < 1000


def test_one_that_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ToolchainUnavailable, match=r"cc cannot be started: No such file"):
        run_command([str(tmp_path / "cc")], timeout_seconds=1)


def test_one_that_hangs_is_killed_with_everything_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(ToolchainUnavailable, match=r"/bin/sh did not end within 0\.3 s"):
        shell(f"sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000", timeout_seconds=0.3)
    wait(lambda: is_gone(read_pid(tmp_path / "pid")))


def test_what_stays_behind_a_command_that_ended_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    assert shell(f"sleep 1000 & echo $! > {tmp_path}/pid").failure is None
    wait(lambda: is_gone(read_pid(tmp_path / "pid")))


def test_cancelled_it_is_killed(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        shell(
            f"sleep 1000 & echo $! > {tmp_path}/pid; wait",
            cancelled=lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "",
        )
    wait(lambda: is_gone(read_pid(tmp_path / "pid")))


def test_it_dies_with_a_process_whose_thread_does_not_wait_for_it(tmp_path: Path) -> None:
    run_to_its_end(THREAD, tmp_path)


def test_it_dies_with_a_process_that_ends_just_as_it_is_started(tmp_path: Path) -> None:
    slow = (
        "class Slow(subprocess.Popen):\n"
        "    def __init__(self, *words, **options):\n"
        "        super().__init__(*words, **options)\n"
        "        while threading.main_thread().is_alive(): time.sleep(0.01)\n"
        "        time.sleep(0.3)\n"
        "command.subprocess.Popen = Slow\n"
    )
    run_to_its_end(slow + THREAD, tmp_path)


def test_it_dies_with_a_process_that_is_killed(tmp_path: Path) -> None:
    run_to_its_end(THREAD + "os.kill(os.getpid(), signal.SIGKILL)\n", tmp_path, status=-signal.SIGKILL)


def test_a_fork_of_this_process_leaves_its_commands_alone(tmp_path: Path) -> None:
    fork = (
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "os.kill(int(Path(sys.argv[1]).read_text()), 0)\n"
        "thread.join(0.2)\n"
        "assert thread.is_alive()\n"
    )
    run_to_its_end(THREAD + fork, tmp_path)


IMPORTS = (
    "import os, signal, subprocess, sys, threading, time\n"
    "from pathlib import Path\n"
    "from search.lowering import command\n"
)
THREAD = (
    "words = ['/bin/sh', '-c', f'sleep 1000 & echo $! > {sys.argv[1]}; wait']\n"
    "run = lambda: command.run_command(words, timeout_seconds=1000)\n"
    "thread = threading.Thread(target=run, daemon=True)\n"
    "thread.start()\n"
    "while not (Path(sys.argv[1]).exists() and Path(sys.argv[1]).read_text()): time.sleep(0.01)\n"
)


def run_to_its_end(program: str, folder: Path, *, status: int = 0) -> None:
    """Runs a Python program; what it started, whose process is in the file ``pid``, is gone soon after it."""
    words = [sys.executable, "-c", IMPORTS + program, str(folder / "pid")]
    assert subprocess.run(words, timeout=PATIENCE_SECONDS).returncode == status
    wait(lambda: is_gone(read_pid(folder / "pid")))


def test_it_sees_no_variable_of_this_process_but_the_few_that_children_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNER_DATABASE_URL", "CPATH", "GCC_EXEC_PREFIX"):
        monkeypatch.setenv(name, "secret")
    seen = shell("env", environment={"TMPDIR": "/nowhere"}).stdout
    assert "secret" not in seen
    assert {"TMPDIR=/nowhere", f"PATH={os.environ['PATH']}"} <= set(seen.splitlines())


def test_it_and_what_it_starts_stay_on_the_given_cpus_and_this_thread_does_not() -> None:
    before = os.sched_getaffinity(0)
    done = shell("grep Cpus_allowed_list /proc/self/status", cpus=(max(before),))
    assert done.stdout.split()[1:] == [str(max(before))]
    assert os.sched_getaffinity(0) == before


def test_memory_processor_time_and_cores_are_limited() -> None:
    limits = shell("sleep 0.2; ulimit -Hv; ulimit -Ht; ulimit -Hc", memory_limit_bytes=1 << 30, timeout_seconds=7.0)
    memory_kib, seconds, core = limits.stdout.split()
    assert (memory_kib, core) == (str(1 << 20), "0")
    assert int(seconds) >= 7


def test_where_nobody_can_know_how_it_ended_that_is_said() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(ChildFailed, match="ignores SIGCHLD"):
            shell("exit 0")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_other_processes_are_left_alone() -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        shell("exit 1")
        assert other.poll() is None
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()

"""The killable child: conversation, isolation, every way of ending, and what must die with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from search.children.child import LOG_TAIL_BYTES, Child, ChildGone, ChildTimeout
from search.errors import Cancelled

PATIENCE = 30.0


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> list[int]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and any(map(running, pids)):
        time.sleep(0.01)
    return [pid for pid in pids if running(pid)]


def ask(child, **command):
    child.send(command)
    return child.receive(timeout_seconds=PATIENCE)


def test_a_conversation(start) -> None:
    child = start()
    assert ask(child, do="echo", text="one\ntwo ☃") == {"said": "one\ntwo ☃"}
    long = "x" * 3_000_000  # more than any pipe holds, both ways
    assert ask(child, do="echo", text=long) == {"said": long}
    assert child.alive


def test_it_leads_its_own_session_with_few_descriptors_and_variables(start, monkeypatch) -> None:
    monkeypatch.setenv("TUNER_DATABASE_URL", "postgresql://user:password@host/db")
    state = ask(start("a", "b"), do="state")
    assert state["pid"] == state["group"] == state["session"]
    assert state["arguments"] == ["a", "b"]
    assert "TUNER_DATABASE_URL" not in state["environment"]
    assert state["environment"]["OMP_NUM_THREADS"] == "1"
    assert state["descriptors"] <= 7  # 0 1 2, commands, answers, progress, and the listing itself
    assert state["adjust"] == "1000"


def test_it_knows_how_its_own_end_where_its_parent_does_not(start) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert ask(start(), do="state")["ignores_children"] is False
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_it_is_pinned(start) -> None:
    cpu = max(os.sched_getaffinity(0))
    assert ask(start(cpus=(cpu,)), do="state")["cpus"] == [cpu]


def test_its_memory_is_limited(start) -> None:
    child = start(memory_limit_bytes=1 << 30)
    assert ask(child, do="allocate", bytes=1 << 20) == {"allocated": True}
    assert ask(child, do="allocate", bytes=1 << 31) == {"allocated": False}


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGFPE])
def test_a_signal_is_named(start, number) -> None:
    with pytest.raises(ChildGone) as gone:
        ask(start(), do="signal", number=number)
    assert gone.value.exit.signal_name == number.name
    assert gone.value.exit.exit_code is None


def test_an_exit_code_is_kept(start) -> None:
    with pytest.raises(ChildGone) as gone:
        ask(start(), do="exit", code=3)
    assert gone.value.exit.document() == {"exit_code": 3, "log_tail": ""}


def test_progress_survives_the_child(start) -> None:
    child = start()
    ask(child, do="progress", number=41)
    with pytest.raises(ChildGone) as gone:
        ask(child, do="signal", number=signal.SIGKILL)
    assert gone.value.exit.progress == 41


def test_output_is_drained_and_cut(start) -> None:
    child = start()
    assert ask(child, do="print", bytes=50_000_000) == {"printed": 50_000_000}
    exit_ = child.kill()
    assert exit_.log_tail.endswith("xxthe end")
    assert len(exit_.log_tail) == LOG_TAIL_BYTES


def test_standard_input_is_empty(start) -> None:
    child = start()
    assert ask(child, do="read") == {"read": 0}
    assert ask(child, do="echo", text="still") == {"said": "still"}


def test_no_answer_in_time(start) -> None:
    child = start()
    child.send({"do": "sleep"})
    with pytest.raises(ChildTimeout):
        child.receive(timeout_seconds=0.2)
    assert child.alive
    assert child.kill().signal_name == "SIGKILL"
    assert not child.alive
    assert not running(child.pid)


@pytest.mark.parametrize("what", ["garbage", "close"])
def test_a_broken_protocol_ends_the_child(start, what) -> None:
    child = start()
    child.send({"do": what})
    with pytest.raises(ChildGone):
        child.receive(timeout_seconds=PATIENCE)
    assert not running(child.pid)


def test_cancelling_kills(start) -> None:
    child = start()
    child.send({"do": "sleep"})
    with pytest.raises(Cancelled):
        child.receive(timeout_seconds=PATIENCE, cancelled=lambda: True)
    assert not running(child.pid)


def test_a_child_that_does_not_read_is_noticed(start) -> None:
    child = start()
    child.send({"do": "sleep"})
    with pytest.raises(ChildTimeout):
        child.send({"do": "echo", "text": "x" * 1_000_000}, timeout_seconds=0.2)


def test_nothing_is_sent_to_the_dead(start) -> None:
    child = start()
    child.kill()
    for _ in range(2):
        with pytest.raises(ChildGone):
            child.send({"do": "echo"})
        with pytest.raises(ChildGone):
            child.receive(timeout_seconds=1)
    assert child.kill().signal_name == "SIGKILL"


def test_killing_reaches_the_group_and_what_left_it(start) -> None:
    child = start()
    pids = ask(child, do="fork")["pids"]
    assert all(map(running, pids))
    child.kill()
    assert wait_until_gone(pids) == []


def test_the_end_is_noticed_although_a_grandchild_holds_the_pipe(start) -> None:
    child = start()
    pids = ask(child, do="fork")["pids"]
    with pytest.raises(ChildGone) as gone:
        ask(child, do="exit", code=0)
    assert gone.value.exit.exit_code == 0
    assert wait_until_gone(pids) == []


def test_descriptors_are_given_back(start) -> None:
    start().kill()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        child = start()
        ask(child, do="echo", text="")
        child.kill()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_child_outlives_the_thread_that_started_it(start) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(start()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert ask(found[0], do="echo", text="here") == {"said": "here"}


def test_the_working_directory_is_no_place_to_import_from(start, tmp_path, monkeypatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("raise SystemExit('a file of the working directory was imported')")
    monkeypatch.chdir(elsewhere)
    state = ask(start(), do="state")
    assert str(elsewhere) not in state["path"]
    assert "" not in state["path"]


def test_a_module_that_does_not_exist_is_an_end_with_a_log(start, tmp_path) -> None:
    child = Child.start("search.measuring.no_such_module")
    with pytest.raises(ChildGone) as gone:
        child.receive(timeout_seconds=PATIENCE)
    assert "no_such_module" in gone.value.exit.log_tail


PARENT = """
import json, os, sys
from search.children.child import Child
child = Child.start("echo_child", environment={"PYTHONPATH": sys.argv[1]})
child.send({"do": "echo", "text": ""})
child.receive(timeout_seconds=30)
child.send({"do": "fork"})
started = child.receive(timeout_seconds=30)["pids"]
child.send({"do": "sleep"})
print(json.dumps([child.pid, *started]), flush=True)
sys.stdin.read()
"""


def test_a_child_and_what_it_started_die_with_its_parent(start, tmp_path) -> None:
    start()  # writes the module
    path = f"{tmp_path}:{Path(__file__).parents[3]}"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert all(map(running, pids))
        parent.kill()
    assert wait_until_gone(pids) == []

"""A child module to converse with, written where children can import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search.children.child import Child

ECHO = """
import os, signal, sys, time
from search.children.entry import enter

channel = enter(sys.argv[1])
for command in channel.commands():
    match command["do"]:
        case "echo":
            channel.answer({"said": command["text"]})
        case "state":
            channel.answer({
                "pid": os.getpid(), "group": os.getpgid(0), "session": os.getsid(0),
                "cpus": sorted(os.sched_getaffinity(0)), "environment": dict(os.environ), "path": sys.path,
                "arguments": sys.argv[2:], "descriptors": len(os.listdir("/proc/self/fd")),
                "adjust": open("/proc/self/oom_score_adj").read().strip(),
                "ignores_children": signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN,
            })
        case "sleep":
            time.sleep(1000)
        case "print":
            sys.stdout.write("x" * command["bytes"]); sys.stdout.flush(); os.write(2, b"the end")
            channel.answer({"printed": command["bytes"]})
        case "read":
            channel.answer({"read": len(os.read(0, 10))})
        case "signal":
            os.kill(os.getpid(), command["number"]); time.sleep(1000)
        case "exit":
            os._exit(command["code"])
        case "garbage":
            os.write(channel._answer_fd, b"this is no JSON\\n"); time.sleep(1000)
        case "close":
            os.close(channel._answer_fd); time.sleep(1000)
        case "progress":
            channel.progress(command["number"]); channel.answer({})
        case "allocate":
            try:
                bytearray(command["bytes"]); channel.answer({"allocated": True})
            except MemoryError:
                channel.answer({"allocated": False})
        case "fork":
            pids = []
            for escape in (False, True):
                pid = os.fork()
                if pid == 0:
                    if escape:
                        os.setsid()
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(1000)
                    os._exit(0)
                pids.append(pid)
            channel.answer({"pids": pids})
"""

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(**options)`` starts an echo child; whatever is left is killed at the end."""
    (tmp_path / "echo_child.py").write_text(ECHO)
    children: list[Child] = []

    def started(*arguments: str, environment: dict[str, str] | None = None, **options: object) -> Child:
        variables = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}", **(environment or {})}
        children.append(Child.start("echo_child", arguments, environment=variables, **options))
        return children[-1]

    yield started
    for child in children:
        child.kill()

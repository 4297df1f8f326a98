"""Forbidding forks: each protection that a system can offer, asked from C, by Python's own threads and by a limit."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

ASK = """
import ctypes, errno, json, os, sys, threading
from search.children import forks as module

def absent():
    raise OSError(errno.ENOSYS, "absent")

for name in json.loads(sys.argv[1]):
    setattr(module, name, absent)
if "refuse_forks" in json.loads(sys.argv[1]) and os.geteuid() == 0 and sys.argv[2] == "nobody else":
    os.setuid(54321)
forks = module.Forks.forbid()
libc = ctypes.CDLL(None, use_errno=True)
libc.getpid.restype = ctypes.c_int
started, said = 0, set()
gate, held = os.pipe()
for _ in range(int(sys.argv[3])):
    pid = libc.fork()
    if pid == 0:
        libc.close(held)
        libc.read(gate, ctypes.create_string_buffer(1), 1)
        libc._exit(0)
    started += pid > 0
    if pid < 0:
        said.add(errno.errorcode[ctypes.get_errno()])
libc.close(held)
for _ in range(started):
    libc.wait(None)
spawned = libc.system(b"true")
ran = []
thread = threading.Thread(target=ran.append, args=(True,))
thread.start()
thread.join()
print(json.dumps({"protection": forks.protection, "started": started, "said": sorted(said), "threads": ran,
                  "spawned": spawned == 0, "refused": forks.refused(), "again": forks.refused()}))
"""


def asked(*absent: str, user: str = "same", tries: int = 64) -> dict[str, Any]:
    command = [sys.executable, "-c", textwrap.dedent(ASK), json.dumps(absent), user, str(tries)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_forks_are_refused_and_counted_and_threads_start() -> None:
    assert asked() == {
        "protection": "seccomp",
        "started": 0,
        "said": ["EAGAIN"],
        "threads": [True],
        "spawned": False,
        "refused": 65,  # and system()'s
        "again": 0,
    }


def test_a_system_that_tells_nobody_refuses_all_the_same() -> None:
    answer = asked("listen_to_forks")
    assert (answer["protection"], answer["started"], answer["spawned"]) == ("seccomp_uncounted", 0, False)
    assert (answer["said"], answer["threads"], answer["refused"]) == (["EAGAIN"], [True], 0)


@pytest.mark.parametrize(("user", "protection"), [("nobody else", "process_limit"), ("same", None)])
def test_without_a_filter_a_limit_holds_for_all_but_root(user: str, protection: str | None) -> None:
    answer = asked("listen_to_forks", "refuse_forks", user=user, tries=80 if protection else 2)
    if protection is None:
        assert answer["protection"] in ("group_kill", "process_limit")  # who runs the tests is root, or not
        assert answer["started"] == 2
    else:
        assert answer["protection"] == protection
        assert 0 < answer["started"] <= 64
        assert answer["said"] == ["EAGAIN"]
    assert answer["threads"] == [True]

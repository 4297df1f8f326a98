"""The process that watches this one's end: nobody's child, and none of a fork."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
from search.children.environment import passed_on
from search.children.marks import MARK_NAME

mark = passed_on()[MARK_NAME]
assert passed_on()[MARK_NAME] == mark
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    child = os.fork()
    if child == 0:
        os._exit(passed_on()[MARK_NAME] == mark)
    assert os.waitpid(child, 0)[1] == 0
    print("sound")
"""


def test_who_waits_for_all_children_does_not_wait_for_it_and_a_fork_has_its_own() -> None:
    # It holds nothing open either: the pipes of this program end with the program.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("sound\n", "")

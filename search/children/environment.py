"""What processes that are started here see of this one's environment: a service's own variables hold passwords."""

from __future__ import annotations

import os

from search.children.marks import MARK_NAME
from search.children.watcher import WATCHER

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "TUNER_CC", "TUNER_NVCC")


def passed_on() -> dict[str, str]:
    """The variables that children and compilers are given, and no others: nothing else may shape what is built.

    With them goes the mark by which they are found and killed when this process ends, however it does. OSError.
    """
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {MARK_NAME: WATCHER.mark()}

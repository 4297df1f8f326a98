"""What processes that are started here see of this one's environment: a service's own variables hold passwords."""

from __future__ import annotations

import os

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "TUNER_CC", "TUNER_NVCC")


def passed_on() -> dict[str, str]:
    """The variables that children and compilers are given, and no others: nothing else may shape what is built."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}

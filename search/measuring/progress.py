"""Numbers that the kernel child notes before foreign code runs, so that its death has a culprit. Both sides."""

from __future__ import annotations

IDLE, LOADING, CHECKING, TIMING = range(4)
"""While one item is measured. The last one stays noted until the next command: a late death is still that item's."""
FINALS = 16
"""In finals: this + the index of the item that runs."""

DOING = {IDLE: "preparing", LOADING: "loading", CHECKING: "checking", TIMING: "timing"}

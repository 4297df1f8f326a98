"""Asks the driver which GPUs there are: ``python -m search.measuring.gpu.probe_child ENTRY``. One answer, then the end.

A child, because a broken driver may hang or crash whoever loads its library.
"""

from __future__ import annotations

import sys

from search.children.entry import enter
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.nvml import cards


def main() -> None:
    """Enter, ask, answer ``{"cards": [...]}`` or ``{"reason": ...}``."""
    channel = enter(sys.argv[1])
    try:
        channel.answer({"cards": cards()})
    except DriverFault as fault:
        channel.answer({"reason": str(fault)})


if __name__ == "__main__":
    main()

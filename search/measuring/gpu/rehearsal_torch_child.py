"""``gpu_torch_child`` with torch on the CPU.

``python -m search.measuring.gpu.rehearsal_torch_child ENTRY SCRIPT warm|cold``
"""

from __future__ import annotations

import json
import sys

from search.children.entry import enter
from search.measuring.gpu.rehearsal import RehearsalCard, Script
from search.measuring.gpu.torch_clock import HostClock
from search.measuring.gpu_torch_child import GpuTorchChild
from search.measuring.serving import serve


def main() -> None:
    """Enter, then serve."""
    channel = enter(sys.argv[1])
    script = Script.from_document(json.loads(sys.argv[2]))
    child = GpuTorchChild(
        open_card=lambda: RehearsalCard(script),
        clock=lambda: HostClock(last_level_cache_bytes=script.last_level_cache_bytes),
        place="cpu",
        cache_context="cold" if sys.argv[3] == "cold" else "warm",
    )
    serve(channel, child.handlers())


if __name__ == "__main__":
    main()

"""Asks the driver which GPUs there are: ``python -m search.measuring.gpu.probe_child ENTRY [order]``. One answer, then
the end. With ``order`` CUDA is asked too, which cards it shows, in its own order.

A child, because a broken driver may hang or crash whoever loads its library.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any

from search.children.entry import enter
from search.measuring.gpu.cuda_calls import ask
from search.measuring.gpu.driver import DriverFault
from search.measuring.gpu.nvml import cards


def main() -> None:
    """Enter, ask, answer ``{"cards": [...], "shown": [uuid] or null, "unshown": why}`` or ``{"reason": ...}``."""
    channel = enter(sys.argv[1])
    try:
        answer: dict[str, Any] = {"cards": cards(), "shown": None, "unshown": None}
    except DriverFault as fault:
        channel.answer({"reason": str(fault)})
        return
    if "order" in sys.argv[2:]:
        try:
            answer["shown"] = shown_uuids()
        except DriverFault as fault:
            answer["unshown"] = str(fault)
    channel.answer(answer)


def shown_uuids() -> list[str]:
    """The uuids of the cards that CUDA shows to a process of this environment, in CUDA's order. DriverFault."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverFault("CUDA_ERROR_NO_PACKAGE", "lost", str(error)) from None
    try:
        ask(driver, driver.cuInit, 0)
        count = int(ask(driver, driver.cuDeviceGetCount))
        found = [ask(driver, driver.cuDeviceGetUuid, ask(driver, driver.cuDeviceGet, place)) for place in range(count)]
    except RuntimeError as error:  # of the bindings: no library of a driver
        raise DriverFault("CUDA_ERROR_NOT_OPENED", "lost", str(error)) from None
    return [f"GPU-{uuid.UUID(bytes=bytes(one.bytes))}" for one in found]


if __name__ == "__main__":
    main()

"""What is simulated and in which orders. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from search.lowering.contract import Argument, Launch


@dataclass(frozen=True, kw_only=True)
class SimulationItem:
    """One CUDA kernel to simulate. ``id`` is the caller's (a trial id)."""

    id: str
    cuda_text: str
    """Complete source as TileLang prints it, with the kernel already named ``symbol``."""
    symbol: str
    arguments: tuple[Argument, ...]
    launch: Launch

    def call_document(self) -> dict[str, Any]:
        """JSON form of what the child needs to call the built kernel."""
        return {
            "symbol": self.symbol,
            "arguments": [vars(argument) for argument in self.arguments],
            "launch": vars(self.launch),
        }


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run of a kernel on each input: which thread goes first, what registers hold, where tensors lie."""

    name: Literal["ascending", "descending", "shuffled"]
    number: int
    """The value that ``fibers.h`` knows it by."""
    poison_byte: int
    """What registers and shared memory are filled with."""
    side: Literal["head", "tail"]
    """Which end of each tensor touches memory that must not be touched."""


ORDERS: tuple[Order, ...] = (
    # NaN and -1; a huge number; a huge negative one: whatever a reduction does, one of them shows.
    Order(name="ascending", number=0, poison_byte=0xFF, side="tail"),
    Order(name="descending", number=1, poison_byte=0x7B, side="head"),
    Order(name="shuffled", number=2, poison_byte=0xFB, side="tail"),
)

"""Access demand: what a schedule's ops read, write and traverse, per program instance and per lane.

Counted from the ops themselves, so identical loads count once per statement (the builder lifted them so), later
statements and phases count again, and both branches of a select count. Row scalars, carries and collective
scaffolding do not. Per-lane figures use the busiest lane's stripe of each loop, so zero-filled tails count. No cache,
DRAM, register or spill count is inferred: those are code facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.planning.schedule import (
    Collective,
    DistributedLoop,
    GlobalLoad,
    GlobalStore,
    PrivateLoad,
    PrivateStore,
    Schedule,
    flat_steps,
)
from search.program.case import Case
from search.program.ir import DTYPE_BYTES

STORED_BYTES = {**DTYPE_BYTES, "bool": 4}
"""Conditions are kept as int32."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Six figures of one program instance or of its busiest lane."""

    scalar_rounds: int = 0
    """Elements traversed: the sum over the distributed loops, the snapshot copy included."""
    collective_rounds: int = 0
    """Rounds of the trees that combine lanes: Σ finalizes ceil(log2 L)."""
    global_read_bytes: int = 0
    global_write_bytes: int = 0
    private_read_bytes: int = 0
    private_write_bytes: int = 0

    def document(self) -> dict[str, int]:
        """JSON form."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a schedule asks for. Not ``available`` (see ``Schedule.unavailable``): every figure is zero."""

    available: bool
    per_program: Access
    per_lane: Access
    unavailable_reason: str | None = None

    def document(self) -> dict[str, Any]:
        """JSON form, as in ``trial.plan.demand``."""
        out: dict[str, Any] = {
            "available": self.available,
            "per_program": self.per_program.document(),
            "per_lane": self.per_lane.document(),
        }
        if self.unavailable_reason is not None:
            out["unavailable_reason"] = self.unavailable_reason
        return out


def demand(schedule: Schedule) -> Demand:
    """Count a schedule's accesses (bytes of payload, scalars traversed, collective rounds)."""
    if schedule.unavailable is not None:
        nothing = Access()
        return Demand(available=False, per_program=nothing, per_lane=nothing, unavailable_reason=schedule.unavailable)
    tile_dtypes = {tile.name: tile.dtype for tile in schedule.private_tiles}
    program, lane = [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]
    rounds = 0
    for step, times in flat_steps(schedule.steps):
        if isinstance(step, Collective):
            rounds += times * step.rounds
        elif isinstance(step, DistributedLoop):
            for position, amount in enumerate((1, *_element_bytes(step, schedule.case, tile_dtypes))):
                program[position] += times * amount * step.extent
                # In a strict fold every lane waits for the chain: as many rounds as elements, its own accesses only.
                waits = step.serial and position == 0
                lane[position] += times * amount * (step.extent if waits else step.stripe_scalars)
    return Demand(available=True, per_program=_access(program, rounds), per_lane=_access(lane, rounds))


def _element_bytes(loop: DistributedLoop, case: Case, tile_dtypes: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Bytes per element of a loop: global read, global write, private read, private write."""
    global_read = global_write = private_read = private_write = 0
    for op in loop.ops:
        match op:
            case GlobalLoad():
                global_read += STORED_BYTES[op.dtype]
            case GlobalStore():
                global_write += case.element_bytes(op.tensor)
            case PrivateLoad():
                private_read += STORED_BYTES[op.dtype]
            case PrivateStore():
                private_write += STORED_BYTES[tile_dtypes[op.tile]]
            case _:
                pass
    return global_read, global_write, private_read, private_write


def _access(figures: list[int], collective_rounds: int) -> Access:
    scalar_rounds, global_read, global_write, private_read, private_write = figures
    return Access(
        scalar_rounds=scalar_rounds,
        collective_rounds=collective_rounds,
        global_read_bytes=global_read,
        global_write_bytes=global_write,
        private_read_bytes=private_read,
        private_write_bytes=private_write,
    )

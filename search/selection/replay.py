"""The replay of an acceptance as a schedule: which arms a case has, and in which order they are timed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from search.device.spec import CacheContext
from search.errors import InvalidInput, Problem

ArmName = Literal["R", "C", "D", "I", "A", "T"]
ARMS: tuple[ArmName, ...] = ("R", "C", "D", "I", "A", "T")
"""Reference, candidate, default, incumbent, the candidate once more (A/A control), torch."""
FROZEN_ARMS: tuple[ArmName, ...] = ("C", "R", "D", "I")
"""Arms that are kernels, each built anew in every round. Of those with equal code the first in this order is timed."""
LATER_ARMS: tuple[ArmName, ...] = ("D", "I", "A")
BALANCE = 4
"""Rounds come in multiples of four: R or C first, kernels or torch first, each combination equally often."""
DEFAULT_ROUNDS = 4
MAXIMUM_ROUNDS = 64


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What an arm must be: the frozen entry's candidate, plan, source and machine code."""

    trial_id: str
    candidate: Mapping[str, Any]
    plan: Mapping[str, Any]
    source_sha256: str
    artifact_sha256: str
    same_code_as: ArmName | None = None
    """The arm of the case that is measured in its stead, because their machine code is identical."""


@dataclass(frozen=True, kw_only=True)
class ReplayCase:
    """One entry of the candidate catalog with its opponents."""

    index: int
    case: Mapping[str, Any]
    """``Case.document()``: kernel, params, dims, dtypes (and program when it was sent)."""
    key_digest: str
    arms: Mapping[str, Arm]
    """R, C, D, A, and I where the incumbent has the key."""
    torch: bool
    """Whether the torch arm takes part."""
    stand_in: bool = False
    """The incumbent's entry is of another toolchain: its source and machine code are those of its first rebuild."""

    @property
    def built(self) -> tuple[ArmName, ...]:
        """Arms that are built anew in every round, those too whose machine code is another's: that must stay true."""
        return tuple(name for name in FROZEN_ARMS if name in self.arms)

    @property
    def measured(self) -> frozenset[ArmName]:
        """Arms with a record in every round."""
        own = (name for name in self.built if self.arms[name].same_code_as is None)
        return frozenset((*own, "A", *(("T",) if self.torch else ())))


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Everything that is decided before the first round."""

    rounds: int
    cases: tuple[ReplayCase, ...]
    cache_context: CacheContext = "warm"
    """That of the catalog's keys: every arm is timed so."""


def arms_of(*, reference: Arm, candidate: Arm, default: Arm, incumbent: Arm | None) -> dict[str, Arm]:
    """The arms of a case; those whose machine code is an earlier one's (C, R, D, I) say so and are not measured."""
    given: dict[ArmName, Arm | None] = {"C": candidate, "R": reference, "D": default, "I": incumbent}
    arms: dict[str, Arm] = {}
    first: dict[str, ArmName] = {}
    for name, arm in given.items():
        if arm is None:
            continue
        root = first.setdefault(arm.artifact_sha256, name)
        arms[name] = replace(arm, same_code_as=None if root == name else root)
    return {**arms, "A": replace(candidate, same_code_as=None)}


def with_stand_in(case: ReplayCase, incumbent: Arm | None) -> ReplayCase:
    """The case once its stand-in was rebuilt; without an incumbent when it could not be (None)."""
    arms = arms_of(reference=case.arms["R"], candidate=case.arms["C"], default=case.arms["D"], incumbent=incumbent)
    return replace(case, arms=arms)


def check_rounds(rounds: object, *, pointer: str = "/rounds") -> int:
    """The number of rounds. InvalidInput unless it is a positive multiple of four, at most 64."""
    allowed = f"a multiple of {BALANCE} from {BALANCE} to {MAXIMUM_ROUNDS}"
    fits = isinstance(rounds, int) and not isinstance(rounds, bool)
    if not fits or not 0 < int(str(rounds)) <= MAXIMUM_ROUNDS or int(str(rounds)) % BALANCE:
        message = "orders are balanced only over a multiple of four rounds"
        raise InvalidInput([Problem(field=pointer, value=rounds, message=message, allowed=allowed)])
    return int(str(rounds))


def arm_order(number: int) -> tuple[ArmName, ...]:
    """Every arm in the order of round ``number``.

    Bit 0 decides between R and C, bit 1 between the two kernels and torch; D, I and A follow, rotated left.
    """
    kernels: tuple[ArmName, ...] = ("C", "R") if number & 1 else ("R", "C")
    opening: tuple[ArmName, ...] = ("T", *kernels) if number & 2 else (*kernels, "T")
    return (*opening, *rotated(LATER_ARMS, number))


def rotated(items: Sequence[Any], by: int) -> tuple[Any, ...]:
    """The items, rotated left."""
    turn = by % len(items) if items else 0
    return (*items[turn:], *items[:turn])


def sequence(replay: Replay, number: int) -> tuple[tuple[int, ArmName], ...]:
    """(case index, arm) in the order in which round ``number`` times them; a record's position is its place here."""
    return tuple(
        (case.index, arm) for case in rotated(replay.cases, number) for arm in arm_order(number) if arm in case.measured
    )

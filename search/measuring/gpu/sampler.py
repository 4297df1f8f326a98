"""Groups of samples on a card, each with the conditions it was taken under; those that deviate are taken again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from search.measuring.gpu.card import Card, CardState, foreign
from search.measuring.gpu.conditions import MOST_REPEATS, Clocks, Contended, conditions_document
from search.measuring.gpu.loop import Loop
from search.measuring.protocol import Phase, PhaseTiming, Protocol, Timing
from search.measuring.timers import sample_phases

Taken = TypeVar("Taken")
_LOOK_BACK_SECONDS = 1.0
"""The driver tells of the load that a process made with so much delay."""


class Sampler:
    """Watches one card while groups are taken. ``ours``: processes that are no strangers."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._clocks = Clocks()
        self._states: list[CardState] = []
        self._watching = False
        self.ours: Collection[int] = ()

    def in_flight(self) -> None:
        """To be called while the device is busy with a sample: the card's state now, kept for the group."""
        if self._watching:
            self._states.append(self._card.state())

    def group(self, take: Callable[[], Taken]) -> tuple[Taken, dict[str, Any]]:
        """Take a group; once more, a few times, if it deviates. What was taken last, with its conditions.

        Contended when others compute on the card before, during or right after it.
        """
        self._refuse_company(0.0)
        for repeats in range(MOST_REPEATS + 1):
            started = time.monotonic()
            self._states, self._watching = [], True
            try:
                taken = take()
            finally:
                self._watching = False
            if not self._states:  # nothing of it was long enough to look on
                self._states = [self._card.state()]
            self._refuse_company(time.monotonic() - started)
            deviation = self._clocks.deviation(self._states)
            if deviation is None or repeats == MOST_REPEATS:
                break
        return taken, conditions_document(self._states, repeats=repeats, deviation=deviation)

    def phases(self, loop: Loop, protocol: Protocol, phases: Sequence[Phase]) -> Timing:
        """Sample phases of a loop, a group each: warmed up, then the protocol's samples."""
        timing: dict[Phase, PhaseTiming] = {}

        def warm(seconds: float) -> float:
            per_call = loop.warm_seconds_per_call(seconds)
            self._states.clear()  # the clock rose meanwhile: that is what warming up is for
            return per_call

        for phase in phases:

            def take(phase: Phase = phase) -> Timing:
                return sample_phases(
                    protocol,
                    (phase,),
                    warm=warm,
                    device=loop.device_seconds,
                    host=loop.host_seconds,
                )

            taken, conditions = self.group(take)
            timing[phase] = replace(taken[phase], conditions=conditions)
        return timing

    def _refuse_company(self, seconds: float) -> None:
        strangers = foreign(self._card.processes(since_seconds=seconds + _LOOK_BACK_SECONDS), self.ours)
        if strangers:
            raise Contended(strangers)

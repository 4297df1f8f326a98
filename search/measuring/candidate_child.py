"""Commands by which candidates are checked and timed, the same on every target. Child side; a target fills in how.

``measure`` checks and times one item; ``finals`` times many in rotating rounds; ``pair_load`` and ``pair_sample`` time
one item turn by turn beside another child. While something is timed nothing else of ours runs: no garbage collection,
no output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from search.children.entry import Channel
from search.measuring.bench import Bench
from search.measuring.loading import LoadProblem
from search.measuring.progress import CHECKING, FINALS, IDLE, LOADING, TIMING
from search.measuring.protocol import OTHER_PHASES, Phase, Protocol, Timing, timing_document
from search.measuring.timers import calls_per_batch, quiet_interpreter
from search.outcome import Rejected

Answer = dict[str, Any]
Conditions = Mapping[str, Any]
Loaded = TypeVar("Loaded")
Taken = TypeVar("Taken")


class CandidateChild(ABC, Generic[Loaded]):
    """State of the process: a case on the bench, and the item that is being paired."""

    fault: type[Exception]
    """What the target raises when foreign code fails; :meth:`_charged` says what it means."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.bench: Bench | None = None
        self._paired: tuple[Loaded, int] | None = None

    def measure(
        self, artifact: Mapping[str, Any], protocol: Mapping[str, Any], phases: Sequence[Phase], check: bool
    ) -> Answer:
        """Check one item on every input set, then time it; a rejection says where it ended. ``tainted``: what wrote
        where it must not, or left something behind, had this process to itself."""
        bench = self._on_bench()
        answer: Answer = {"event": "result", "checks": None, "timing": None, "rejection": None}
        rejection: Rejected | None = None
        tainted = False
        try:
            self._channel.progress(LOADING)
            loaded = self._load(artifact)
            rejection = self._aftermath()
            if rejection is None and check:
                self._channel.progress(CHECKING)
                verdict = bench.check(lambda: self._run_once(loaded))
                answer["checks"] = verdict.checks.document()
                rejection, tainted = verdict.rejection, verdict.tainted
            if rejection is None and phases:
                self._channel.progress(TIMING)
                self._put_normal()
                timing = self._sample(loaded, artifact, Protocol(**protocol), phases)
                rejection = self._damage()
                tainted = rejection is not None
                answer["timing"] = timing_document(timing)
        except LoadProblem as problem:
            rejection = problem.rejection
        except self.fault as fault:
            rejection = self._charged(fault)
        left = self._aftermath()
        rejection = rejection or left
        if rejection is not None:
            answer["timing"], answer["rejection"] = None, rejection.document()
        answer["tainted"] = tainted or left is not None or self._tainted(rejection)
        return answer

    def finals(
        self,
        artifacts: Sequence[Mapping[str, Any]],
        protocol: Mapping[str, Any],
        all_phases: Sequence[int],
        turns: Sequence[int],
    ) -> Answer:
        """Warm every item up, time each once per round, starting one further each round; then the extra phases.

        ``turns``: first round and the one after the last, when other processes take the others.
        """
        sampling, index = Protocol(**protocol), 0
        loaded: list[Loaded] = []
        counts: list[int] = []

        def fault(rejection: Rejected) -> Answer:
            return {"event": "fault", "index": index, "rejection": rejection.document(), "tainted": True}

        try:
            self._channel.progress(IDLE)
            self._put_normal()
            for index, artifact in enumerate(artifacts):
                self._channel.progress(FINALS + index)
                loaded.append(self._load(artifact))
                counts.append(calls_per_batch(sampling, self._warm(loaded[-1], sampling.warmup_seconds)))
                if (harm := self._damage() or self._aftermath()) is not None:
                    return fault(harm)
                self._channel.answer({"event": "warmed"})
            for turn in range(*turns):
                order = [(turn + step) % len(loaded) for step in range(len(loaded))]

                def take(order: Sequence[int] = order) -> list[float]:
                    nonlocal index
                    seconds = [0.0] * len(order)
                    with quiet_interpreter():
                        for index in order:
                            self._channel.progress(FINALS + index)
                            seconds[index] = self._turn(loaded[index], counts[index])
                    return seconds

                seconds, conditions = self._group(take)
                self._channel.answer({"event": "round", "seconds": seconds} | _under(conditions))
            for index in all_phases:
                self._channel.progress(FINALS + index)
                timing = self._sample(loaded[index], artifacts[index], sampling, OTHER_PHASES)
                self._channel.answer({"event": "phases", "index": index, "timing": timing_document(timing)})
        except LoadProblem as problem:
            return fault(problem.rejection)
        except self.fault as error:
            return fault(self._charged(error))
        return {"event": "done", "calls_per_sample": counts}

    def pair_load(self, artifact: Mapping[str, Any], protocol: Mapping[str, Any]) -> Answer:
        """Warm one item up, to be sampled on request."""
        sampling = Protocol(**protocol)
        try:
            self._channel.progress(TIMING)
            loaded = self._load(artifact)
            self._put_normal()
            count = calls_per_batch(sampling, self._warm(loaded, sampling.warmup_seconds))
        except LoadProblem as problem:
            return {"event": "fault", "rejection": problem.rejection.document()}
        except self.fault as fault:
            return {"event": "fault", "rejection": self._charged(fault).document()}
        self._paired = (loaded, count)
        return {"event": "ready", "calls_per_sample": count}

    def pair_sample(self) -> Answer:
        """One sample of the item that ``pair_load`` brought; seconds per call."""
        assert self._paired is not None, "pair_load comes first"
        loaded, count = self._paired

        def take() -> float:
            with quiet_interpreter():
                return self._turn(loaded, count)

        try:
            seconds, conditions = self._group(take)
        except self.fault as fault:
            return {"event": "fault", "rejection": self._charged(fault).document()}
        return {"event": "sample", "seconds": seconds} | _under(conditions)

    @abstractmethod
    def _load(self, artifact: Mapping[str, Any]) -> Loaded:
        """The artifact bound to the case's tensors. LoadProblem, or the target's fault."""

    @abstractmethod
    def _run_once(self, loaded: Loaded) -> Mapping[str, Any]:
        """One call on what the bench has just loaded; the arrays of the outputs."""

    @abstractmethod
    def _put_normal(self) -> None:
        """The ``normal`` inputs, poison and guards where the kernel will find them."""

    @abstractmethod
    def _warm(self, loaded: Loaded, seconds: float) -> float:
        """Warm up for so long; seconds per call."""

    @abstractmethod
    def _turn(self, loaded: Loaded, calls: int) -> float:
        """Seconds per call of one sample; untimed calls first leave the caches as calls of this one do."""

    @abstractmethod
    def _sample(
        self, loaded: Loaded, artifact: Mapping[str, Any], protocol: Protocol, phases: Sequence[Phase]
    ) -> Timing:
        """Samples of these phases."""

    @abstractmethod
    def _damage(self) -> Rejected | None:
        """Damage to guards or inputs since :meth:`_put_normal`."""

    @abstractmethod
    def _charged(self, fault: Exception) -> Rejected:
        """A fault as the rejection of the item that ran; raised again when it is none of its doing."""

    @abstractmethod
    def _tainted(self, rejection: Rejected | None) -> bool:
        """Whether this rejection leaves a process in which nothing else may run."""

    def _aftermath(self) -> Rejected | None:
        """What foreign code left in this process besides memory."""
        return None

    def _group(self, take: Callable[[], Taken]) -> tuple[Taken, Conditions | None]:
        """Take a group of samples; the conditions that it was taken under, where the target has such."""
        return take(), None

    def _on_bench(self) -> Bench:
        assert self.bench is not None, "a case comes first"
        return self.bench


def _under(conditions: Conditions | None) -> Answer:
    return {} if conditions is None else {"conditions": conditions}

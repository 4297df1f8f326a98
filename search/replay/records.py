"""What an acceptance records, and what it still lacks. Pure: a driver stores the records and asks again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from search.documents import record_document, record_from_document
from search.lowering.contract import Artifact
from search.measuring.protocol import Checks, Timing
from search.outcome import Rejected
from search.selection.replay import Arm, Replay, ReplayCase, sequence, with_stand_in


@dataclass(frozen=True, kw_only=True)
class BuildRound:
    """Lower and compile every arm anew, in processes of this round only, the artifact store bypassed."""

    round: int


@dataclass(frozen=True, kw_only=True)
class TimeRound:
    """Check and time the arms of a built round, in its order, nothing overlapping. A round is timed as a whole."""

    round: int


ReplayStep: TypeAlias = BuildRound | TimeRound
_STEPS: Mapping[str, type[BuildRound] | type[TimeRound]] = {"build_round": BuildRound, "time_round": TimeRound}


@dataclass(frozen=True, kw_only=True)
class ArmBuild:
    """What came of one arm's build: an artifact and a plan, or a rejection."""

    case: int
    arm: str
    artifact: Artifact | None
    plan: Mapping[str, Any] | None
    rejection: Rejected | None = None


@dataclass(frozen=True, kw_only=True)
class RoundBuilt:
    """A round's builds. ``process`` names the processes that made them: no two rounds share one."""

    round: int
    process: str
    builds: tuple[ArmBuild, ...]

    def build(self, case: int, arm: str) -> ArmBuild:
        """The build of an arm. KeyError."""
        for build in self.builds:
            if (build.case, build.arm) == (case, arm):
                return build
        raise KeyError((case, arm))


@dataclass(frozen=True, kw_only=True)
class ArmTimed:
    """One arm of one case, checked and timed once in a round; or the reason why it could not be."""

    round: int
    case: int
    arm: str
    started_at: str
    """RFC 3339 UTC with microseconds; read together with the monotonic clock."""
    finished_at: str
    started_monotonic_seconds: float
    finished_monotonic_seconds: float
    timing: Timing = field(default_factory=dict)
    """``device_batch`` and ``e2e_batch``."""
    checks: Checks | None = None
    torch: Mapping[str, Any] | None = None
    """Arm T: ``{"implementation", "allocation", "versions"}``."""
    failure: Mapping[str, Any] | None = None
    """``{"stage", "reason", "detail"}``; the record then has no timing."""


ReplayRecord: TypeAlias = RoundBuilt | ArmTimed


@dataclass(frozen=True, kw_only=True)
class ReplayState:
    """A replay with what was recorded. ``timed[r]`` holds the records of one attempt at round r, in order."""

    replay: Replay
    built: Mapping[int, RoundBuilt] = field(default_factory=dict)
    timed: Mapping[int, tuple[ArmTimed, ...]] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the replay cannot go on: an arm that is a kernel was not built, or not checked and timed."""
        found = []
        for built in self.built.values():
            found += [
                f"{self._words(build.case, build.arm)} was not built in round {built.round}: {_why(build.rejection)}"
                for build in built.builds
                if (build.artifact is None or build.plan is None) and not self._stands_in(build)
            ]
        for records in self.timed.values():
            found += [
                f"{self._words(one.case, one.arm)} failed in round {one.round}: "
                f"{one.failure['stage']}, {one.failure['reason']}"
                for one in records
                if one.failure is not None and one.arm != "T"
            ]
        return tuple(found)

    def torch_failures(self) -> dict[int, str]:
        """Case index → why torch takes no part in it: it failed in some round."""
        return {
            one.case: str(one.failure["reason"])
            for records in self.timed.values()
            for one in records
            if one.arm == "T" and one.failure is not None
        }

    def case(self, index: int) -> ReplayCase:
        """The case of that index."""
        return self.replay.cases[index]

    def _stands_in(self, build: ArmBuild) -> bool:
        return build.arm == "I" and self.case(build.case).stand_in

    def _words(self, index: int, arm: str) -> str:
        case = self.case(index).case
        return f"arm {arm} of {case['kernel']} {dict(case['dims'])}"


def resolved(state: ReplayState) -> ReplayState:
    """The state with stand-ins (incumbents of another toolchain) as the first round built them.

    One that could not be built, or has another plan by now, takes no part: it cannot be the incumbent any more.
    """
    first = state.built.get(0)
    if first is None or not any(case.stand_in for case in state.replay.cases):
        return state
    cases = tuple(with_stand_in(case, _rebuilt(case, first)) if case.stand_in else case for case in state.replay.cases)
    return replace(state, replay=replace(state.replay, cases=cases))


def _rebuilt(case: ReplayCase, first: RoundBuilt) -> Arm | None:
    build = next((build for build in first.builds if (build.case, build.arm) == (case.index, "I")), None)
    known = case.arms.get("I")
    if build is None or known is None or build.artifact is None or build.plan != known.plan:
        return None
    code = build.artifact
    return replace(known, source_sha256=code.source_sha256, artifact_sha256=code.artifact_sha256)


def missing(state: ReplayState) -> ReplayStep | None:
    """The next step; None when the replay is complete or cannot go on. Rounds come one after the other."""
    if state.failures:
        return None
    for number in range(state.replay.rounds):
        if number not in state.built:
            return BuildRound(round=number)
        if [(one.case, one.arm) for one in state.timed.get(number, ())] != list(sequence(state.replay, number)):
            return TimeRound(round=number)
    return None


def expected_records(replay: Replay) -> int:
    """How many arms are timed in all rounds together."""
    return sum(len(sequence(replay, number)) for number in range(replay.rounds))


def step_document(step: ReplayStep) -> dict[str, Any]:
    """JSON form, its word under ``step``."""
    word = next(word for word, record in _STEPS.items() if isinstance(step, record))
    return {"step": word, "round": step.round}


def step_from_document(document: Mapping[str, Any]) -> ReplayStep:
    """Inverse of :func:`step_document`."""
    return _STEPS[document["step"]](round=document["round"])


def replay_document(record: Replay | ReplayRecord) -> dict[str, Any]:
    """JSON form of a replay or of one of its records."""
    document: dict[str, Any] = record_document(record)
    return document


def replay_from_document(document: Mapping[str, Any]) -> Replay:
    """Inverse of :func:`replay_document` for a replay."""
    return record_from_document(Replay, document)


def built_from_document(document: Mapping[str, Any]) -> RoundBuilt:
    """Inverse of :func:`replay_document` for a round's builds."""
    return record_from_document(RoundBuilt, document)


def timed_from_document(document: Mapping[str, Any]) -> ArmTimed:
    """Inverse of :func:`replay_document` for a timed arm."""
    return record_from_document(ArmTimed, document)


def _why(rejection: Rejected | None) -> str:
    return "its candidate has no plan any more" if rejection is None else f"{rejection.stage}, {rejection.reason}"

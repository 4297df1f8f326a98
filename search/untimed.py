"""What a case on a compile-only device lacks: every trial is built, then simulated; nothing is timed, nothing wins."""

from __future__ import annotations

from collections.abc import Sequence

from search.events import CaseSettled
from search.ledger import CaseState
from search.step import MEASURE_CHUNK, Check, ShareCode, Step, batches, queue_of, touched

CHECK_BATCH = 15
"""Trials per Check: their simulations share one compiler call, which takes a second alone already (design/5)."""


def checks(state: CaseState, in_flight: Sequence[Step]) -> tuple[Step, ...]:
    """Built trials, in canonical order: those of new code to be simulated, those of checked code to share the record.

    One of each code is simulated, the earliest; the others wait for its end. While builds are coming only full batches
    are worth a step.
    """
    checked: dict[str, str] = {}
    for trial in state.trials:
        if trial.outcome == "checked" and trial.artifact is not None and trial.same_code_as is None:
            checked.setdefault(trial.artifact.artifact_sha256, trial.id)
    busy = touched(in_flight, Check, ShareCode)
    running = {t.artifact.artifact_sha256 for t in state.trials if t.id in busy and t.artifact is not None}
    alone: list[str] = []
    shared: list[tuple[str, str]] = []
    for trial in state.trials:
        if trial.outcome != "pending" or trial.artifact is None or trial.id in busy:
            continue
        code = trial.artifact.artifact_sha256
        if code in checked:
            shared.append((trial.id, checked[code]))
        elif code not in running:
            running.add(code)
            alone.append(trial.id)
    if any(trial.outcome == "pending" and trial.artifact is None for trial in state.trials):
        alone = alone[: len(alone) // CHECK_BATCH * CHECK_BATCH]
        if any(queue_of(step) == "device" for step in in_flight):
            shared = shared[: len(shared) // MEASURE_CHUNK * MEASURE_CHUNK]
    return (
        *(Check(trials=tuple(batch)) for batch in batches(alone, CHECK_BATCH)),
        *(ShareCode(trials=tuple(chunk)) for chunk in batches(shared, MEASURE_CHUNK)),
    )


def nothing_timed(state: CaseState) -> CaseSettled:
    """The result of a case whose trials have all ended: it names no winner, and says why."""
    return CaseSettled(
        winner=None,
        reference=None,
        tie_set=(),
        reference_tie_set=(),
        noise_floor=None,
        regret=None,
        predicted=None,
        untimed=state.untimed,
    )

"""The ledger of a case: rebuilt from its rows, changed by events, written back. ``search.ledger`` gives the meaning."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from search.device.spec import why_untimed
from search.documents import record_document, record_from_document
from search.events import CaseSettled, Event, event_document, event_from_document
from search.ledger import CaseState, TrialState, apply
from search.lowering.contract import Artifact, CodeFacts
from search.measuring.protocol import Checks, timing_document, timing_from_document
from search.outcome import Rejected
from search.space.candidate import Candidate
from tuner_service.db.clock import now
from tuner_service.db.queries import cases, jobs, trials

CACHED_TRIALS = 60_000
"""Copies together hold at most so many trials (a few hundred MB), or one case."""
MAXIMUM_NEWS = 500
"""A copy that missed more than so much of its job's feed is read anew."""
_ABOUT_TRIALS = frozenset({"built", "trial_measured", "trial_checked", "trial_rejected"})
"""Events whose whole effect is on the trials that the feed names."""
_ABOUT_CASES = frozenset({"default_retimed", "finals_measured", "baseline_measured", "fresh_built", "revalidated"})
"""Events that are stored as such, beside what the feed says they did to trials."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A case's state as of one revision of its rows."""

    revision: int
    state: CaseState
    seen: int
    """What the job's feed has up to this number is in it."""


class Ledger:
    """Reads and writes the ledgers of cases. Thread-safe.

    The rows own the state. A copy in memory is used only while the row's revision says that it is current, so a
    case with thousands of trials is not read again for every event. Where other processes record too, a copy catches
    up: the job's feed names the trials that changed, and only those are read.
    """

    def __init__(self) -> None:
        self._copies: OrderedDict[str, Entry] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, session: Session, case_id: str) -> CaseState:
        """The state as the session's transaction sees it. The case must be opened. KeyError when there is none."""
        return self._entry(session, case_id).state

    def change(self, session: Session, case_id: str, event: Event, *, worker: str | None) -> Change | None:
        """Writes what an event changes; None when it is stale or repeated and changes nothing.

        Call it in a writing transaction, and :meth:`keep` after its commit.
        """
        changes = self.changes(session, case_id, (event,), worker=worker)
        return changes[0] if changes else None

    def changes(self, session: Session, case_id: str, events: Iterable[Event], *, worker: str | None) -> list[Change]:
        """The same for several events, one after the other, with as few statements as for one."""
        entry, made = self._entry(session, case_id), list[Change]()
        columns: dict[str, dict[str, Any]] = {}
        values: dict[str, Any] = {}
        for event in events:
            after = apply(entry.state, event)
            if after is entry.state:
                continue
            pairs = zip(entry.state.trials, after.trials, strict=True)  # an event keeps their order
            changed = tuple((old, new) for old, new in pairs if new is not old)
            for old, trial in changed:
                ended = trial.outcome != "pending" and old.outcome == "pending"
                end = {"finished_at": now(), "worker": worker} if ended else {}
                columns[trial.id] = columns.get(trial.id, {}) | _trial_values(trial) | end
            kind = event_document(event)["event"]
            if isinstance(event, CaseSettled):
                values |= {"settled": True, "result": record_document(event)}
            elif name := _case_event_name(session, case_id, event):
                cases.add_case_event(session, case_id, kind, name, event_document(event))
            entry = Entry(revision=entry.revision + 1, state=after, seen=entry.seen)
            new_trials = tuple(new for _, new in changed)
            made.append(Change(case_id=case_id, event=event, kind=kind, trials=new_trials, entry=entry))
        if made:
            trials.update_trials(session, columns)
            # At its end too: a process of a version that did not count may have recorded the last of its trials.
            counts = _counts(entry.state) if columns or "settled" in values else {}
            cases.update_case(session, case_id, {**values, **counts, "revision": entry.revision})
        return made

    def keep(self, change: Change, *, seen: int) -> None:
        """Remembers the state that a committed change led to. ``seen``: the number of the feed's last word on it."""
        self._keep(change.case_id, replace(change.entry, seen=seen))

    def _entry(self, session: Session, case_id: str) -> Entry:
        current = cases.case_revision(session, case_id)
        if current is None:
            raise KeyError(case_id)
        job_id, revision = current
        with self._lock:
            copy = self._copies.get(case_id)
        if copy is not None and copy.revision == revision:
            return copy
        entry = None if copy is None else _caught_up(session, job_id, copy, revision)
        if entry is None:
            # The number first: what comes after it is read once more, and nothing is missed.
            seen = jobs.last_sequence(session, job_id)
            case = cases.case_row(session, case_id)
            assert case is not None
            state = _state(session, case, tuple(map(_trial_state, trials.ledger_rows(session, case_id))))
            entry = Entry(revision=revision, state=state, seen=seen)
        self._keep(case_id, entry)
        return entry

    def _keep(self, case_id: str, entry: Entry) -> None:
        with self._lock:
            known = self._copies.get(case_id)
            if known is None or known.revision <= entry.revision:
                self._copies[case_id] = entry
                self._copies.move_to_end(case_id)
            while len(self._copies) > 1 and self._cached_trials() > CACHED_TRIALS:
                self._copies.popitem(last=False)

    def _cached_trials(self) -> int:
        return sum(len(entry.state.trials) for entry in self._copies.values())


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an event changed."""

    case_id: str
    event: Event
    kind: str
    """The event's word."""
    trials: tuple[TrialState, ...]
    """Trials that changed, as they are now."""
    entry: Entry


def _caught_up(session: Session, job_id: str, copy: Entry, revision: int) -> Entry | None:
    """A copy with what the job's feed tells since; None where it does not tell everything, as at a case's end."""
    news = jobs.news(session, job_id, after=copy.seen, limit=MAXIMUM_NEWS)
    mine = [document for _, document in news if document.get("case_id") == copy.state.id]
    told = {document["event"] for document in mine}
    if not mine or len(news) == MAXIMUM_NEWS or not told <= _ABOUT_TRIALS | _ABOUT_CASES:
        return None
    named = {document["trial_id"] for document in mine if "trial_id" in document}
    fresh = {row["id"]: _trial_state(row) for row in trials.ledger_rows(session, copy.state.id, only=named)}
    standing = tuple(fresh.get(trial.id, trial) for trial in copy.state.trials)
    if told <= _ABOUT_TRIALS:
        state = replace(copy.state, trials=standing)
    else:
        case = cases.case_row(session, copy.state.id)
        assert case is not None
        state = _state(session, case, standing)
    return Entry(revision=revision, state=state, seen=news[-1][0])


def _state(session: Session, case: Mapping[str, Any], standing: tuple[TrialState, ...]) -> CaseState:
    """From rows: the trials as they stand, then the recorded events of the case as a whole, in their order."""
    job = jobs.job_row(session, case["job_id"])
    state = CaseState(
        id=case["id"],
        trials=standing,
        baselines_wanted=tuple(job["request"]["baselines"]),
        untimed=why_untimed(job["device"]),
        spills_allowed=job["request"].get("spills_allowed", True),
        cache_context=job["request"].get("cache_context", "warm"),
    )
    for document in cases.case_events(session, [case["id"]]).get(case["id"], []):
        state = apply(state, event_from_document(document))
    # The rows already hold what these events did to trials.
    settled = None if case["result"] is None else record_from_document(CaseSettled, case["result"])
    return replace(state, trials=standing, settled=settled)


def _trial_state(row: Mapping[str, Any]) -> TrialState:
    build = row["build"] or {}
    rejected = row["outcome"] == "rejected"
    return TrialState(
        id=row["id"],
        ordinal=row["ordinal"],
        candidate=Candidate.from_document(row["candidate"]),
        in_space=row["in_space"],
        is_default=row["is_default"],
        outcome=row["outcome"],
        private_scalars=row["private_scalars"],
        score=row["score"],
        plan=row["plan"],
        rejection=Rejected(stage=row["stage"], reason=row["reason"], detail=row["detail"] or {}) if rejected else None,
        artifact=None if row["artifact"] is None else Artifact.from_document(row["artifact"]),
        facts=None if row["code"] is None else CodeFacts.from_document(row["code"]),
        lower_seconds=build.get("lower_seconds"),
        compile_seconds=build.get("compile_seconds"),
        checks=None if row["checks"] is None else Checks.from_document(row["checks"]),
        timing={} if row["timing"] is None else timing_from_document(row["timing"]),
        overlapped=bool(row["overlapped"]),
        same_code_as=row["same_code_as"],
    )


def _trial_values(trial: TrialState) -> dict[str, Any]:
    """The columns that an event can change."""
    rejection, artifact = trial.rejection, trial.artifact
    measured = trial.outcome == "measured"
    return {
        "outcome": trial.outcome,
        "stage": None if rejection is None else rejection.stage,
        "reason": None if rejection is None else rejection.reason,
        "detail": None if rejection is None else dict(rejection.detail),
        "artifact": None if artifact is None else artifact.document(),
        "source_sha256": None if artifact is None else artifact.source_sha256,
        "code": None if trial.facts is None else trial.facts.document(),
        "registers": None if trial.facts is None else trial.facts.registers,
        "spill_bytes": None if trial.facts is None else trial.facts.spill_bytes,
        "build": None
        if trial.lower_seconds is None
        else {"lower_seconds": trial.lower_seconds, "compile_seconds": trial.compile_seconds},
        "checks": None if trial.checks is None else trial.checks.document(),
        "timing": timing_document(trial.timing) if trial.timing else None,
        "median_seconds": trial.timing["device_batch"].median_seconds if measured else None,
        "overlapped": trial.overlapped if measured else None,
        "same_code_as": trial.same_code_as,
    }


def _counts(state: CaseState) -> dict[str, Any]:
    """The columns of a case that say how many candidates of its space have which outcome."""
    counted: Counter[str] = Counter(trial.outcome for trial in state.trials if trial.in_space)
    return {outcome: counted[outcome] for outcome in cases.COUNTED}


def _case_event_name(session: Session, case_id: str, event: Event) -> str | None:
    """What tells events of one kind apart within a case; None for events that are about one trial only."""
    document = event_document(event)
    match document["event"]:
        case "default_retimed":
            return str(document["sequence"])
        case "finals_measured":
            recorded = cases.case_events(session, [case_id]).get(case_id, [])
            return str(sum(known["event"] == "finals_measured" for known in recorded))
        case "baseline_measured":
            return str(document["samples"]["name"])
        case "fresh_built" | "revalidated":
            return str(document["trial"])
        case _:
            return None

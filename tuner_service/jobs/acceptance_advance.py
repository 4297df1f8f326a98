"""Advance an acceptance: hand out the step that is missing, or conclude when nothing is. Short and idempotent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import Session

from catalogs import Catalog, canonical_json
from search.device.spec import DeviceSpec
from search.replay.conclude import conclude
from search.replay.evidence import bundle, search_bundle
from search.replay.records import BuildRound, ReplayState, ReplayStep, missing, step_document
from tuner_service.db.clock import now
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances, catalogs
from tuner_service.engine.contract import Engine, Task
from tuner_service.errors import DeviceAwaited
from tuner_service.jobs.acceptance import uncovered
from tuner_service.jobs.acceptance_ledger import end_acceptance, load_state
from tuner_service.jobs.searches import case_trials
from tuner_service.jobs.states import job_has_ended


class AcceptanceAdvancer:
    """Advances acceptances. Not thread-safe: one thread calls it."""

    def __init__(self, *, database: Database, engine: Engine, devices: Callable[[], Mapping[str, DeviceSpec]]) -> None:
        self._database, self._engine, self._devices = database, engine, devices

    def advance(self, acceptance_id: str) -> None:
        """Does what can be done for an acceptance now. NotFound; DatabaseProblem, DeviceAwaited (try again later)."""
        with self._database.read() as session:
            row = acceptances.acceptance_row(session, acceptance_id)
        if job_has_ended(row["state"]):
            return
        reason = self._unfit(row)
        if reason is not None:
            end_acceptance(self._database, acceptance_id, "failed", error=reason)
            self._engine.cancel(acceptance_id)
            return
        if self._engine.in_flight(acceptance_id):
            return
        # Only now: what a task that has just ended recorded is not to be asked for again.
        self._go_on(row)

    def _unfit(self, row: Mapping[str, Any]) -> str | None:
        """Why the rounds cannot go on: they come from one device with one toolchain. Raises DeviceAwaited."""
        then, current = row["device"], self._devices().get(row["device_id"])
        verb = "begin" if row["state"] == "queued" else "go on"
        if current is None:
            raise DeviceAwaited(f"device {row['device_id']} is not attached; the rounds {verb} when it is back")
        if not current.available:
            reason = f"device {current.id} is unavailable ({current.reason})"
            raise DeviceAwaited(f"{reason}; the rounds {verb} when it is back")
        if current.toolchain_fingerprint != then["toolchain_fingerprint"]:
            return (
                f"the toolchain of device {current.id} changed under the acceptance, from "
                f"{then['toolchain_fingerprint']} to {current.toolchain_fingerprint}; ask for it again"
            )
        return None

    def _go_on(self, row: Mapping[str, Any]) -> None:
        """Hands out the step that is missing, or concludes. Nothing of the acceptance is in flight."""
        with self._database.write() as session:
            fresh = acceptances.lock_acceptance(session, row["id"])
            if job_has_ended(fresh["state"]) or fresh["attempt"] != row["attempt"]:
                return  # another process handed out a step meanwhile
            state = load_state(session, row["id"])
            step, attempt = missing(state), fresh["attempt"] + 1
            if step is not None:
                values = {"state": "running", "started_at": fresh["started_at"] or now(), "step": step_document(step)}
                acceptances.update_acceptance(session, row["id"], {**values, "attempt": attempt})
        if step is None:
            self._conclude(row, state)
        else:
            self._submit(row, step, attempt)

    def _submit(self, row: Mapping[str, Any], step: ReplayStep, attempt: int) -> None:
        self._engine.submit(
            Task(
                key=f"{row['id']}/{attempt}",
                job_id=row["id"],
                # Builds take the device's slot too: they use every core, the measuring one included.
                queue="device",
                device_id=row["device_id"],
                quiet=not isinstance(step, BuildRound),
                builds=isinstance(step, BuildRound),
                priority=0,
                payload={"case_id": None, "step": step_document(step), "attempt": attempt},
            )
        )

    def _conclude(self, row: Mapping[str, Any], state: ReplayState) -> None:
        device = DeviceSpec.from_document(row["device"])
        with self._database.read() as session:
            wanted = {"candidate": row["catalog"], "reference": row["reference"], "incumbent": row["incumbent"]}
            bodies = catalogs.bodies(session, [digest for digest in wanted.values() if digest])
            stored = {
                role: Catalog.from_bytes(bodies[digest].encode(), digest=digest) if digest else None
                for role, digest in wanted.items()
            }
            candidate, reference = stored["candidate"], stored["reference"]
            assert candidate is not None
            assert reference is not None
            jobs = sorted({entry.job_id for entry in (*candidate.entries, *reference.entries)})
            searches = [search_of(session, job_id) for job_id in jobs]
        conclusion = conclude(
            state,
            toolchain=device.toolchain_fingerprint,
            frozen_toolchain=candidate.toolchain,
            device_name=f"{device.name} ({device.id})",
            uncovered=uncovered(candidate, stored["incumbent"]),
        )
        evidence = bundle(
            row["id"],
            state,
            conclusion,
            device=device,
            catalogs={role: catalog.document() if catalog else None for role, catalog in stored.items()},
            search=searches,
        )
        end_acceptance(
            self._database,
            row["id"],
            "succeeded",
            values={
                "result": conclusion.document(),
                "verdict": conclusion.verdict,
                "evidence": canonical_json(evidence).decode(),
                "evidence_sha256": evidence["sha256"],
            },
        )


def search_of(session: Session, job_id: str) -> dict[str, Any]:
    """The search bundle of a job: its cases with every trial.

    Cases whose search was cut short by a limit are left out: they have no winner that anything rests on, and no record
    of every candidate.
    """
    searched = []
    for row in catalogs.settled_job_cases(session, job_id):
        found = case_trials(session, job_id, row["case_index"])
        if sum(trial["in_space"] and trial["outcome"] != "not_run" for trial in found) == row["enumerated"]:
            searched.append((row, found))
    return search_bundle(job_id, searched)

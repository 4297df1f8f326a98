"""Asking for an acceptance: everything that the replay compares is decided now, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from catalogs import Catalog, Entry
from search.device.spec import CacheContext, DeviceSpec
from search.program.report import Report
from search.replay.records import replay_document
from search.selection.replay import DEFAULT_ROUNDS, Arm, Replay, ReplayCase, arms_of, check_rounds
from tuner_service.db.clock import new_id, now
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances, catalogs, idempotency
from tuner_service.errors import Conflict
from tuner_service.jobs.promote import DEFAULT_ALIAS, check_alias, incumbent_of, stand_in_of

KEYS = ("rounds", "alias")
PREFIX = "acc"


@dataclass(frozen=True, kw_only=True)
class AcceptRequest:
    """How a catalog is replayed. What ``alias`` names at this moment takes part as the incumbent."""

    rounds: int = DEFAULT_ROUNDS
    alias: str = DEFAULT_ALIAS


def is_acceptance(identifier: str) -> bool:
    """Whether an id is that of an acceptance: engine and runtime know both kinds of work by one word."""
    return identifier.startswith(f"{PREFIX}_")


def read_accept_request(body: Any) -> AcceptRequest:
    """The request that a JSON body describes. InvalidInput with every fault."""
    report = Report()
    body = report.members(body, KEYS, not_an_object="a request is a JSON object")
    report.raise_if_any()
    return AcceptRequest(
        rounds=check_rounds(body.get("rounds", DEFAULT_ROUNDS)),
        alias=check_alias(body.get("alias", DEFAULT_ALIAS), pointer="/alias"),
    )


def accept(
    database: Database,
    digest: str,
    request: AcceptRequest,
    *,
    devices: Mapping[str, DeviceSpec],
    idempotency_key: str | None = None,
    request_sha256: str = "",
) -> str:
    """Id of a new, queued acceptance of a candidate catalog, or of the one that the same key and request made before.

    NotFound for an unknown digest. Conflict for a reference catalog, and when no usable attached device has the
    identity that the catalog is for. On another toolchain than the catalog's it becomes a canary replay, which
    reports what differs and accepts nothing. IdempotencyMismatch for a key that came with another request.
    """
    acceptance_id = new_id(PREFIX)
    with database.write() as session:
        known = idempotency.made_before(session, idempotency_key, request_sha256, making=acceptance_id)
        if known is not None:
            return known
        row = catalogs.catalog_row(session, digest)
        if row["role"] != "candidate":
            raise Conflict(f"{digest} is a {row['role']} catalog; accept the candidate {row['other']}")
        device = _device(row["device"], devices)
        incumbent = incumbent_of(session, request.alias, device=row["device"], toolchain=row["toolchain"])
        if incumbent is None:
            incumbent = stand_in_of(session, request.alias, device=row["device"])
        bodies = catalogs.bodies(session, [digest, row["other"], *([incumbent] if incumbent else [])])
        stored = {name: Catalog.from_bytes(body.encode(), digest=name) for name, body in bodies.items()}
        replay = Replay(
            rounds=request.rounds,
            cache_context=_cache_context(stored[digest], stored.get(incumbent or ""), request.alias),
            cases=_cases(session, stored[digest], stored[row["other"]], stored.get(incumbent or "")),
        )
        acceptances.insert_acceptance(
            session,
            {
                "id": acceptance_id,
                "state": "queued",
                "catalog": digest,
                "reference": row["other"],
                "incumbent": incumbent,
                "alias": request.alias,
                "rounds": request.rounds,
                "device_id": device.id,
                "device": device.document(),
                "replay": replay_document(replay),
                "attempt": 0,
                "failures": 0,
                "created_at": now(),
            },
        )
    return acceptance_id


def uncovered(candidate: Catalog, incumbent: Catalog | None) -> tuple[str, ...]:
    """Keys that the incumbent has and the candidate lacks, in words."""
    if incumbent is None or incumbent.toolchain != candidate.toolchain:
        return ()  # what an alias names for another toolchain stays
    mine = {entry.key.digest for entry in candidate.entries}
    lacking = (entry for entry in incumbent.entries if entry.key.digest not in mine)
    return tuple(f"{entry.kernel} {dict(entry.key.dims)}" for entry in lacking)


def _device(identity_digest: str, devices: Mapping[str, DeviceSpec]) -> DeviceSpec:
    fitting = [device for device in devices.values() if device.identity_digest == identity_digest]
    for device in fitting:
        if device.available:
            return device
    if fitting:
        raise Conflict(f"device {fitting[0].id} cannot be used: {fitting[0].reason}")
    attached = {device.id: device.identity_digest for device in devices.values()}
    raise Conflict(
        f"the catalog is for a device with the identity {identity_digest}, and none such is attached",
        members={"attached": attached},
    )


def _cache_context(candidate: Catalog, incumbent: Catalog | None, alias: str) -> CacheContext:
    """The one in which the candidate's entries were measured. Conflict where the incumbent's were in another."""
    mine, theirs = (
        {entry.key.cache_context for entry in catalog.entries} if catalog else set()
        for catalog in (candidate, incumbent)
    )
    if theirs - mine:
        raise Conflict(
            f"the catalog was measured {', '.join(sorted(mine))} and what alias {alias!r} names "
            f"{', '.join(sorted(theirs))}: they cannot be compared; accept it for an alias of its own"
        )
    return "cold" if "cold" in mine else "warm"


def _cases(
    session: Session, candidate: Catalog, reference: Catalog, incumbent: Catalog | None
) -> tuple[ReplayCase, ...]:
    references = _by_key(reference)
    incumbents = _by_key(incumbent, toolchain=candidate.toolchain) if incumbent is not None else {}
    stand_in = incumbent is not None and incumbent.toolchain != candidate.toolchain
    settled = _settled_by_winner(session, candidate)
    cases = []
    for index, entry in enumerate(candidate.entries):
        key = entry.key.digest
        row = settled[entry.trial_id]
        arms = arms_of(
            reference=_entry_arm(references[key]),
            candidate=_entry_arm(entry),
            default=_trial_arm(row["default"]),
            incumbent=_entry_arm(incumbents[key]) if key in incumbents else None,
        )
        stands_in = stand_in and "I" in arms
        if stands_in:  # its machine code is not known before it is rebuilt
            arms["I"] = replace(arms["I"], same_code_as=None)
        cases.append(
            ReplayCase(index=index, case=row["case"], key_digest=key, arms=arms, torch=True, stand_in=stands_in)
        )
    return tuple(cases)


def _by_key(catalog: Catalog, *, toolchain: str | None = None) -> dict[str, Entry]:
    """Key digest → entry; with a toolchain, under the digests that the keys would have with it."""
    return {replace(entry.key, toolchain=toolchain or catalog.toolchain).digest: entry for entry in catalog.entries}


def _settled_by_winner(session: Session, candidate: Catalog) -> dict[str, dict[str, Any]]:
    """Winner's trial id → the settled case that it won, whose default is arm D."""
    rows = [
        row
        for job_id in sorted({entry.job_id for entry in candidate.entries})
        for row in catalogs.settled_job_cases(session, job_id)
    ]
    return {row["winner"]["id"]: row for row in rows if row["winner"] is not None}


def _entry_arm(entry: Entry) -> Arm:
    return Arm(
        trial_id=entry.trial_id,
        candidate=entry.candidate,
        plan=entry.plan,
        source_sha256=entry.code["source_sha256"],
        artifact_sha256=entry.code["artifact_sha256"],
    )


def _trial_arm(trial: Mapping[str, Any]) -> Arm:
    return Arm(
        trial_id=trial["id"],
        candidate=trial["candidate"],
        plan=trial["plan"],
        source_sha256=trial["code"]["source_sha256"],
        artifact_sha256=trial["code"]["artifact_sha256"],
    )

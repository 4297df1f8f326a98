"""Promotion: an alias comes to name an accepted catalog. The incumbent stays in the history; one step leads back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from catalogs import FormatError, Manifest, ManifestEntry
from catalogs.manifest import alias_name
from search.errors import InvalidInput, Problem
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances, catalogs, idempotency
from tuner_service.errors import Conflict, NotFound

DEFAULT_ALIAS = "prod"
ALIAS_ALLOWED = "1 to 64 of a-z 0-9 . _ - with a letter or digit first"


def check_alias(name: Any, *, pointer: str) -> str:
    """An alias's name. InvalidInput for any other."""
    try:
        return alias_name(name)
    except FormatError:
        problem = Problem(field=pointer, value=name, message="not a name of an alias", allowed=ALIAS_ALLOWED)
        raise InvalidInput([problem]) from None


def manifest_of(session: Session, alias: str) -> Manifest:
    """Where an alias points. NotFound."""
    state = catalogs.alias_state(session, alias)
    if state is None:
        raise NotFound("alias", alias)
    return _manifest(session, alias, state["entries"])


def incumbent_of(session: Session, alias: str, *, device: str, toolchain: str) -> str | None:
    """Digest of the candidate catalog that the alias names for a device and toolchain; None when there is none."""
    state = catalogs.alias_state(session, alias)
    for entry in state["entries"] if state else ():
        if (entry["device"], entry["toolchain"]) == (device, toolchain):
            return str(entry["digest"])
    return None


def stand_in_of(session: Session, alias: str, *, device: str) -> str | None:
    """Digest of the newest catalog that the alias names for a device, with whatever toolchain; None without any."""
    state = catalogs.alias_state(session, alias)
    return next(
        (str(entry["digest"]) for entry in (state["entries"] if state else ()) if entry["device"] == device), None
    )


def promote(database: Database, alias: str, digest: str) -> None:
    """The alias names this candidate catalog from now on, for the catalog's device and toolchain.

    Nothing changes when it does so already. NotFound for a digest that no catalog has. Conflict for a reference
    catalog, and unless an acceptance of the digest was accepted in which the alias's present catalog took part.
    """
    with database.write() as session:
        catalogs.lock_aliases(session)
        row = catalogs.catalog_row(session, digest)
        if row["role"] != "candidate":
            raise Conflict(f"{digest} is a {row['role']} catalog; promote the candidate {row['other']}")
        incumbent = incumbent_of(session, alias, device=row["device"], toolchain=row["toolchain"])
        if incumbent == digest:
            return
        accepted = acceptances.accepted(session, digest)
        fitting = [one for one in accepted if incumbent is None or one["incumbent"] == incumbent]
        if not accepted:
            raise Conflict(
                f"catalog {digest} has no accepted acceptance; ask for one with POST /v1/catalogs/{digest}/acceptances"
            )
        if not fitting:
            raise Conflict(
                f"alias {alias!r} names {incumbent} now, and no accepted acceptance of {digest} was run against that; "
                f'ask for one with POST /v1/catalogs/{digest}/acceptances {{"alias": "{alias}"}}',
                members={"incumbent": incumbent, "acceptances": [one["id"] for one in accepted]},
            )
        state = catalogs.alias_state(session, alias)
        mine = ManifestEntry(
            device=row["device"], toolchain=row["toolchain"], digest=digest, reference=row["other"]
        ).document()
        others = [entry for entry in (state["entries"] if state else ()) if not _same_place(entry, mine)]
        catalogs.insert_alias_state(
            session,
            {
                "alias": alias,
                "action": "promote",
                "entries": [mine, *others],
                "acceptance_id": fitting[0]["id"],
                "previous": state["sequence"] if state else None,
            },
        )


def rollback(database: Database, alias: str, *, idempotency_key: str | None = None, request_sha256: str = "") -> None:
    """The alias names again what it named before its last promotion; again: one promotion further back.

    The same key and request again change nothing: a caller that had no answer may ask again. NotFound for an unknown
    alias, Conflict when there is nothing to go back to, IdempotencyMismatch for a key that came with another request.
    """
    with database.write() as session:
        making = f"alias {alias}"[:40]
        if idempotency.made_before(session, idempotency_key, request_sha256, making=making) is not None:
            return
        catalogs.lock_aliases(session)
        state = catalogs.alias_state(session, alias)
        if state is None:
            raise NotFound("alias", alias)
        if state["previous"] is None:
            raise Conflict(f"alias {alias!r} has no earlier state to go back to")
        before = catalogs.alias_state_at(session, state["previous"])
        catalogs.insert_alias_state(
            session,
            {
                "alias": alias,
                "action": "rollback",
                "entries": before["entries"],
                "acceptance_id": before["acceptance_id"],
                "previous": before["previous"],
            },
        )


def _manifest(session: Session, alias: str, entries: list[Mapping[str, Any]]) -> Manifest:
    return Manifest(
        alias=alias,
        entries=tuple(ManifestEntry(**entry) for entry in entries),
        history=tuple(catalogs.alias_history(session, alias)),
    )


def _same_place(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["device"], one["toolchain"]) == (other["device"], other["toolchain"])

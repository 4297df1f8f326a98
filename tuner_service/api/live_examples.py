"""What the examples of the OpenAPI document name: things that this service has now, or a word that there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from search.errors import ArtifactsUnavailable
from search.program.library import kernels
from search.selection.freeze import why_left_out
from tuner_service.api.context import Context
from tuner_service.db.queries import acceptances as acceptance_queries
from tuner_service.db.queries import catalogs as catalog_queries
from tuner_service.db.queries import jobs as job_queries
from tuner_service.db.queries import trials as trial_queries
from tuner_service.db.queries.workers import list_workers, worker_state
from tuner_service.errors import DatabaseProblem
from tuner_service.jobs.promote import DEFAULT_ALIAS

NEWEST = 5
"""So many of the newest jobs, trials or catalogs are looked at; what is older is no example."""
Operation: TypeAlias = tuple[str, str]
"""Method and path."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """What an operation's examples become. Whatever is left out stays as it is declared."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Parameter, in the path or the query → its example; empty: it has none."""
    bodies: Mapping[str, Mapping[str, Any]] | None = None
    missing: str | None = None
    """Why the examples cannot succeed now, and what would help."""


def live_examples(context: Context) -> dict[Operation, Example]:
    """The examples of every operation that needs something to exist: the newest, where there are several."""
    found = _device_examples(context)
    try:
        with context.database.read() as session:
            for examples in (
                _job_examples(session),
                _trial_examples(session, context),
                _settled_examples(session, context),
                _catalog_examples(session, context),
                _acceptance_examples(session),
                _alias_examples(session),
                _artifact_examples(session, context),
                _worker_examples(session, context),
            ):
                found |= examples
    except (DatabaseProblem, ArtifactsUnavailable):
        pass  # the page about the API must open even when the database does not
    return found


_DEVICE_OPERATIONS: tuple[Operation, ...] = (
    ("get", "/v1/devices/{device_id}"),
    ("post", "/v1/devices/{device_id}/quarantine"),
    ("post", "/v1/devices/{device_id}/release"),
)


def _device_examples(context: Context) -> dict[Operation, Example]:
    devices = sorted(context.runtime.devices)
    missing = "No device is attached (yet), so this answers 404."
    example = _named("device_id", devices[0] if devices else None, missing)
    return dict.fromkeys(_DEVICE_OPERATIONS, example)


def _job_examples(session: Session) -> dict[Operation, Example]:
    newest = _first(job_queries.newest_job_ids(session, limit=1))
    missing = "There is no job yet, so this answers 404: start one with `POST /v1/jobs` and reload this page."
    example = _named("job_id", newest, missing)
    paths = ("/v1/jobs/{job_id}", *(f"/v1/jobs/{{job_id}}/{what}" for what in ("events", "trials", "trials/export")))
    found = {("get", path): example for path in paths}
    found["get", "/v1/jobs/{job_id}/cases/{case_index}"] = example
    active = _first(job_queries.newest_job_ids(session, "queued", "running", limit=1))
    stopped = active or _first(job_queries.newest_job_ids(session, "cancelled", limit=1))
    ended = "No job is queued or running, so this answers 409: start one with `POST /v1/jobs` and reload this page."
    cancel = _named("job_id", stopped, ended if newest else missing, otherwise=newest)
    return {**found, ("post", "/v1/jobs/{job_id}/cancel"): cancel}


def _trial_examples(session: Session, context: Context) -> dict[Operation, Example]:
    """A trial with a source, of the newest job that has one; else any trial of the newest job that has any."""
    jobs = job_queries.newest_job_ids(session, limit=NEWEST)
    jobs += [job for job in job_queries.newest_job_ids(session, "succeeded", limit=NEWEST) if job not in jobs]
    any_trial = None
    for job in jobs:
        for outcome in ("measured", "checked", None):
            trials = trial_queries.list_trials(session, job, limit=NEWEST, outcome=outcome)["items"]
            any_trial = any_trial or _first([trial["id"] for trial in trials])
            for trial in trials:
                source = trial_queries.trial_source_sha(session, trial["id"])
                if source is not None and context.runtime.load_source(source) is not None:
                    named = _named("trial_id", trial["id"], "")
                    return {("get", f"/v1/trials/{{trial_id}}{rest}"): named for rest in ("", "/source")}
    missing = "There is no trial yet, so this answers 404: a job has trials once it runs."
    unbuilt = "No trial of the newest jobs was compiled, so this answers 404: wait until a job has measured one."
    return {
        ("get", "/v1/trials/{trial_id}"): _named("trial_id", any_trial, missing),
        ("get", "/v1/trials/{trial_id}/source"): _named("trial_id", None, unbuilt, otherwise=any_trial),
    }


def _settled_examples(session: Session, context: Context) -> dict[Operation, Example]:
    """A lookup of the first case that has a winner, and the job of the first that can be frozen."""
    lookup = Example(missing="No job has found the winner of a built-in kernel yet, so this answers 404.")
    search = Example(missing="No job has found a winner yet, so this answers 404.")
    freeze = Example(missing="No job that can be frozen has succeeded yet, so these answer 422.")
    for row in _newest_settled(session):
        case = row["case"]
        if lookup.missing and row["winner"] is not None and "program" not in case and case["kernel"] in kernels():
            lookup = Example(values=_question(row, context))
        if search.missing and row["winner"] is not None:
            search = Example(bodies=_search_bodies(row))
        if freeze.missing and why_left_out(row) is None:
            freeze = Example(bodies=_freeze_bodies(row["job_id"], case["kernel"]))
        if not lookup.missing and not search.missing and not freeze.missing:
            break
    return {
        ("get", "/v1/winners"): lookup,
        ("post", "/v1/winners"): search,
        ("post", "/v1/catalogs"): freeze,
    }


def _catalog_examples(session: Session, context: Context) -> dict[Operation, Example]:
    frozen = catalog_queries.list_catalogs(session, role="candidate", limit=NEWEST)["items"]
    newest = _first([one["digest"] for one in frozen])
    missing = "No catalog is frozen yet, so this answers 404: freeze a finished job with `POST /v1/catalogs`."
    usable = {device.identity_digest for device in context.runtime.devices.values() if device.available}
    fitting = _first([one["digest"] for one in frozen if one["device"] in usable])
    foreign = "The newest catalogs are for devices that are not attached, so this answers 409."
    return {
        ("get", "/v1/catalogs/{digest}"): _named("digest", newest, missing),
        ("post", "/v1/catalogs/{digest}/acceptances"): _named(
            "digest", fitting, foreign if newest else missing, otherwise=newest
        ),
    }


def _acceptance_examples(session: Session) -> dict[Operation, Example]:
    def newest_in(*states: str | None) -> str | None:
        pages = (acceptance_queries.list_acceptances(session, state=state, limit=1) for state in states)
        return max((one["id"] for page in pages for one in page["items"]), default=None)

    path, newest = "/v1/acceptances/{acceptance_id}", newest_in(None)
    missing = (
        "No catalog was replayed yet, so this answers 404: ask for it with `POST /v1/catalogs/{digest}/acceptances`."
    )
    no_verdict = "No acceptance has a verdict yet, so this answers 409."
    ended = "No acceptance is queued or running, so this answers 409."
    stopped = newest_in("queued", "running") or newest_in("cancelled")
    return {
        ("get", path): _named("acceptance_id", newest, missing),
        ("get", f"{path}/evidence"): _named(
            "acceptance_id", newest_in("succeeded"), no_verdict if newest else missing, otherwise=newest
        ),
        ("post", f"{path}/cancel"): _named("acceptance_id", stopped, ended if newest else missing, otherwise=newest),
    }


def _alias_examples(session: Session) -> dict[Operation, Example]:
    names = catalog_queries.alias_names(session)
    states = {name: catalog_queries.alias_state(session, name) for name in names}
    missing = "There is no alias yet, so this answers 404: promote an accepted catalog with `PUT /v1/aliases/{name}`."
    alias = DEFAULT_ALIAS if DEFAULT_ALIAS in states else _first(names)
    movable = _first([name for name, state in states.items() if state and state["previous"] is not None])
    at_first = "No alias has an earlier state, so this answers 409."
    path = "/v1/aliases/{name}"
    return {
        ("get", path): _named("name", alias, missing),
        ("put", path): _promotion(session, alias, states.get(alias or "")),
        ("post", f"{path}/rollback"): _named("name", movable, at_first if alias else missing, otherwise=alias),
    }


def _promotion(session: Session, alias: str | None, state: Mapping[str, Any] | None) -> Example:
    """What the alias names already, so that trying it out moves nothing; else its first accepted catalog."""

    def promote(summary: str, digest: str) -> dict[str, dict[str, Any]]:
        return {"promote": {"summary": summary, "value": {"digest": digest}}}

    if alias is not None and state is not None and state["entries"]:
        bodies = promote(f"What {alias} names already: nothing changes", state["entries"][0]["digest"])
        return Example(values={"name": alias}, bodies=bodies)
    ended = acceptance_queries.list_acceptances(session, state="succeeded", limit=NEWEST)["items"]
    accepted = _first([one["catalog"] for one in ended if one["verdict"] == "accepted"])
    if accepted is not None:
        return Example(bodies=promote("The alias names this catalog from now on", accepted))
    frozen = catalog_queries.list_catalogs(session, role="candidate", limit=1)["items"]
    if frozen:
        missing = "No catalog was accepted yet, so this answers 409."
        return Example(bodies=promote("The newest catalog", frozen[0]["digest"]), missing=missing)
    return Example(missing="No catalog is frozen yet, so this answers 404.")


def _artifact_examples(session: Session, context: Context) -> dict[Operation, Example]:
    missing = "The artifact store has no library of the newest catalogs and winners, so this answers 404."
    libraries = (sha256 for sha256 in _libraries(session) if context.runtime.load_library(sha256) is not None)
    return {("get", "/v1/artifacts/{sha256}"): _named("sha256", next(libraries, None), missing)}


def _worker_examples(session: Session, context: Context) -> dict[Operation, Example]:
    lost_seconds = context.settings.worker_lost_seconds
    workers = list_workers(session)
    silent = [one["id"] for one in workers if worker_state(one, lost_seconds=lost_seconds) in ("lost", "gone")]
    alive = "Every worker lives, so this answers 409."
    missing = alive if workers else "There is no worker, so this answers 404."
    named = _named("worker_id", _first(silent), missing, otherwise=_first([one["id"] for one in workers]))
    return {("post", "/v1/workers/{worker_id}/forget"): named}


def _libraries(session: Session) -> Iterator[str]:
    """sha256 of libraries that catalogs name, then of those that winners were built to again."""
    for one in catalog_queries.list_catalogs(session, role="candidate", limit=NEWEST)["items"]:
        body = json.loads(catalog_queries.catalog_row(session, one["digest"])["body"])
        yield from (entry["artifact"]["library_sha256"] for entry in body["entries"] if entry.get("artifact"))
    for row in _newest_settled(session):
        built = (event["artifact"] for event in row["events"] if event["event"] == "fresh_built")
        yield from (artifact["library_sha256"] for artifact in built if artifact)


def _newest_settled(session: Session) -> Iterator[dict[str, Any]]:
    for job in job_queries.newest_job_ids(session, "succeeded", limit=NEWEST):
        yield from catalog_queries.settled_job_cases(session, job)


def _question(row: Mapping[str, Any], context: Context) -> dict[str, str]:
    """The query of a settled case's exact key."""
    case, device = row["case"], row["device"]
    attached = context.runtime.devices.get(device["id"])
    known = attached is not None and attached.identity_digest == device["identity_digest"]
    parts = {
        part: ",".join(f"{name}:{value}" for name, value in case[part].items()) for part in ("dims", "params", "dtypes")
    }
    return {
        "kernel": case["kernel"],
        **parts,
        "device": device["id"] if known else device["identity_digest"],
        "toolchain": device["toolchain_fingerprint"],
    }


def _search_bodies(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The body that asks for a settled case's exact key."""
    case, device = row["case"], row["device"]
    where = {"device": device["identity_digest"], "toolchain": device["toolchain_fingerprint"]}
    return {"newest": {"summary": f"The newest winner, of {case['kernel']}", "value": {**case, **where}}}


def _freeze_bodies(job: str, kernel: str) -> dict[str, dict[str, Any]]:
    some = {"jobs": [job], "cases": [{"kernel": kernel}], "labels": {"team": "kernels"}}
    return {
        "one job": {"summary": "Every case of one job", "value": {"jobs": [job]}},
        "one kernel of it": {"summary": f"Only the cases of {kernel}, with a label", "value": some},
    }


def _named(parameter: str, value: str | None, missing: str, *, otherwise: str | None = None) -> Example:
    """``value`` as the parameter; without one ``otherwise``, if that exists, and what is missing."""
    shown = value or otherwise
    return Example(values={parameter: shown} if shown else {}, missing=None if value else missing)


def _first(values: list[str]) -> str | None:
    return values[0] if values else None

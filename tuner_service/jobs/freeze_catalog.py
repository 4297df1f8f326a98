"""Freezing: finished jobs become a reference and a candidate catalog. Nothing is filtered by how much was gained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from catalogs import Catalog, CatalogConflict, DeviceIdentity, KernelRow, canonical_json, freeze, sha256_hex
from search.device.spec import DeviceSpec, why_untimed
from search.program.case import Case
from search.program.report import Report, child
from search.selection.freeze import ROLES, Role, entry_of, kernel_row, why_left_out
from search.selection.searched import SEARCH_SHA256, search_sha256
from tuner_service.db.engine import Database
from tuner_service.db.queries import catalogs, jobs
from tuner_service.errors import Conflict, NotFound, ProgramChanged
from tuner_service.jobs.opening import tuned_case
from tuner_service.jobs.request import Limits, read_labels
from tuner_service.jobs.searches import case_trials

KEYS = ("jobs", "cases", "labels")
FILTER_KEYS = ("kernel", "params", "dims", "dtypes")
MAXIMUM_JOBS = 64
MAXIMUM_FILTERS = 256


@dataclass(frozen=True, kw_only=True)
class FreezeRequest:
    """Which jobs are frozen. ``cases``: only those that one of these documents describes; empty: all."""

    jobs: tuple[str, ...]
    cases: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def read_freeze_request(body: Any) -> FreezeRequest:
    """The request that a JSON body describes. InvalidInput with every fault."""
    report = Report()
    body = report.members(body, KEYS, not_an_object="a request is a JSON object")
    names = body.get("jobs")
    allowed = f"a list of 1 to {MAXIMUM_JOBS} job ids, each once"
    if not isinstance(names, list) or not 1 <= len(names) <= MAXIMUM_JOBS:
        report.add("/jobs", names, "name the jobs to freeze", allowed)
        names = []
    for position, name in enumerate(names):
        if not isinstance(name, str) or names.index(name) != position:
            report.add(f"/jobs/{position}", name, "not a job id, or named twice", allowed)
    chosen = body.get("cases", [])
    if not isinstance(chosen, list) or len(chosen) > MAXIMUM_FILTERS:
        report.add("/cases", chosen, "not a list of cases", f"at most {MAXIMUM_FILTERS} objects with {FILTER_KEYS}")
        chosen = []
    for position, one in enumerate(chosen):
        _check_filter(one, f"/cases/{position}", report)
    labels = read_labels(body.get("labels", {}), Limits(), report)
    report.raise_if_any()
    return FreezeRequest(jobs=tuple(names), cases=tuple(chosen), labels=labels)


def freeze_jobs(database: Database, request: FreezeRequest) -> dict[str, Any]:
    """Freezes and stores both catalogs: ``{"candidate", "reference"`` (summaries), ``"left_out"}``.

    Freezing again gives the same digests and changes nothing. InvalidInput for unknown jobs and cases that no job
    has; Conflict when a job has not succeeded, jobs ran on different devices or toolchains, one key has two winners
    (both are named), or no case can be frozen.
    """
    with database.read() as session:
        settled = _settled(session, request)
    wanted = _selected(settled, request.cases)
    device = _one_device(wanted)
    reasons = {id(row): why_left_out(row) or _changed(row) for row in wanted}
    left_out = [_left_out(row, reason) for row in wanted if (reason := reasons[id(row)]) is not None]
    kept = [row for row in wanted if reasons[id(row)] is None]
    if not kept:
        raise Conflict("no case of these jobs can be frozen", members={"left_out": left_out})
    with database.read() as session:
        bound = [{**row, SEARCH_SHA256: _search_sha256(session, row)} for row in kept]
    kernels = [kernel_row(_case(row)) for row in kept]
    frozen = {role: _frozen(bound, role, device, kernels) for role in ROLES}
    with database.write() as session:
        _hold(session, {row["job_id"] for row in kept})
        catalogs.insert_catalog(session, _row(frozen["candidate"], frozen["reference"], device, request))
        catalogs.insert_catalog(session, _row(frozen["reference"], frozen["candidate"], device, request))
    with database.read() as session:
        return {
            "candidate": catalogs.catalog_summary(session, frozen["candidate"].digest),
            "reference": catalogs.catalog_summary(session, frozen["reference"].digest),
            "left_out": left_out,
        }


def _settled(session: Any, request: FreezeRequest) -> list[dict[str, Any]]:
    report = Report()
    rows: list[dict[str, Any]] = []
    for position, job_id in enumerate(request.jobs):
        try:
            row = jobs.job_row(session, job_id)
        except NotFound:
            report.add(f"/jobs/{position}", job_id, "there is no such job", "the id of a job that has succeeded")
            continue
        if row["state"] != "succeeded":
            raise Conflict(f"job {job_id} is {row['state']}; only a job that has succeeded can be frozen")
        if untimed := why_untimed(row["device"]):
            raise Conflict(f"job {job_id} has no winner to freeze: {untimed}")
        rows += catalogs.settled_job_cases(session, job_id)
    report.raise_if_any()
    return rows


def _hold(session: Any, job_ids: Iterable[str]) -> None:
    """From now on these jobs stay: who prunes them waits, and then finds the catalogs. Conflict where one is gone."""
    for job_id in sorted(job_ids):
        try:
            jobs.lock_job(session, job_id)
        except NotFound:
            raise Conflict(f"job {job_id} was pruned just now") from None


def _selected(rows: Sequence[dict[str, Any]], filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not filters:
        return list(rows)
    report = Report()
    for position, one in enumerate(filters):
        if not any(_matches(row["case"], one) for row in rows):
            there = [f"{row['case']['kernel']} {row['case']['dims']}" for row in rows]
            report.add(f"/cases/{position}", dict(one), "no job of the request has such a case", there)
    report.raise_if_any()
    return [row for row in rows if any(_matches(row["case"], one) for one in filters)]


def _matches(case: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    if case["kernel"] != one["kernel"]:
        return False
    parts = ("params", "dims", "dtypes")
    return all(case[part].get(name) == value for part in parts for name, value in one.get(part, {}).items())


def _one_device(rows: Iterable[Mapping[str, Any]]) -> DeviceSpec:
    """A catalog is of one device with one toolchain, measured in one cache context."""
    contexts = {row["cache_context"]: row for row in rows}
    if len(contexts) > 1:
        one, other = list(contexts.values())[:2]
        raise Conflict(
            f"job {one['job_id']} measured {one['cache_context']} and job {other['job_id']} {other['cache_context']}; "
            "freeze them apart",
        )
    found = {(row["device"]["identity_digest"], row["device"]["toolchain_fingerprint"]): row for row in rows}
    if len(found) > 1:
        one, other = list(found.values())[:2]
        raise Conflict(
            f"jobs {one['job_id']} and {other['job_id']} ran on different devices or toolchains; freeze them apart",
            members={"keys": [{"device": device, "toolchain": toolchain} for device, toolchain in found]},
        )
    return DeviceSpec.from_document(next(iter(found.values()))["device"])


def _frozen(rows: Sequence[Mapping[str, Any]], role: Role, device: DeviceSpec, kernels: Sequence[KernelRow]) -> Catalog:
    identity = DeviceIdentity(kind=device.kind, identity=device.identity)
    described = sha256_hex(device.toolchain) == device.toolchain_fingerprint
    try:
        return freeze(
            [entry_of(row, role=role) for row in rows],
            role=role,
            kernels=kernels,
            device=identity if identity.digest == device.identity_digest else device.identity_digest,
            toolchain=device.toolchain if described else device.toolchain_fingerprint,
        )
    except CatalogConflict as error:
        raise Conflict(str(error)) from None


def _case(row: Mapping[str, Any]) -> Case:
    return tuned_case({"document": row["case"], "program_digest": row["program_digest"]})


def _changed(row: Mapping[str, Any]) -> str | None:
    """Why a catalog cannot say what was tuned: whoever opens it has the kernel of today."""
    try:
        _case(row)
    except ProgramChanged as changed:
        return str(changed)
    return None


def _search_sha256(session: Any, row: Mapping[str, Any]) -> str:
    return search_sha256(row, case_trials(session, row["job_id"], row["case_index"]))


def _row(catalog: Catalog, other: Catalog, device: DeviceSpec, request: FreezeRequest) -> dict[str, Any]:
    return {
        "digest": catalog.digest,
        "role": catalog.role,
        "other": other.digest,
        "device": catalog.device,
        "device_kind": device.kind,
        "toolchain": catalog.toolchain,
        "entries": len(catalog.entries),
        "kernels": sorted({row.name for row in catalog.kernels}),
        "jobs": sorted({entry.job_id for entry in catalog.entries}),
        "labels": dict(request.labels),
        "body": canonical_json(catalog.document()).decode(),
    }


def _left_out(row: Mapping[str, Any], reason: str) -> dict[str, Any]:
    return {
        "job_id": row["job_id"],
        "case_index": row["case_index"],
        "kernel": row["case"]["kernel"],
        "dims": row["case"]["dims"],
        "reason": reason,
    }


def _check_filter(one: Any, field_name: str, report: Report) -> None:
    if not isinstance(one, Mapping) or not isinstance(one.get("kernel"), str):
        report.add(field_name, one, "a case names its kernel", list(FILTER_KEYS))
        return
    report.unknown_keys(one, FILTER_KEYS, pointer=field_name)
    for key in FILTER_KEYS:
        if key != "kernel" and not isinstance(one.get(key, {}), Mapping):
            report.add(child(field_name, key), one[key], "not an object", "name to value")

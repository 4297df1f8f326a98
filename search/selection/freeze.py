"""From a settled case to catalog entries: the winner and the reference with everything that explains and rebuilds them.

Pure. A settled case comes as JSON documents, as the ledger keeps them: ``job_id``, ``case``, ``program_digest`` (of
the program that was tuned, whatever its name stands for now), ``device`` (DeviceSpec document), ``protocol``,
``winner`` and ``reference`` (trial documents or None), ``tie_set``, ``reference_tie_set``, ``events``; and
``search_sha256`` (see ``searched``) when entries are frozen for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from catalogs import Entry, KernelRow, LookupKey, sha256_hex
from search.events import FreshBuilt, Revalidated, event_from_document
from search.measuring.protocol import PROTOCOLS
from search.program.case import Case
from search.program.digest import program_digest
from search.program.document import dump_program
from search.program.dtypes import tensor_dtypes
from search.selection.searched import SEARCH_SHA256
from search.stats.summary import median

Role = Literal["candidate", "reference"]
ROLES: tuple[Role, ...] = ("candidate", "reference")
_NEEDED_TO_LOAD = ("library_sha256", "symbol", "arguments", "launch", "architecture")
"""Of an artifact's document; the last two are a GPU's alone."""
_TRIAL_OF: Mapping[Role, str] = {"candidate": "winner", "reference": "reference"}
_TIES_OF: Mapping[Role, str] = {"candidate": "tie_set", "reference": "reference_tie_set"}


def lookup_key(case: Case, *, device: str, toolchain: str, cache_context: str = "warm") -> LookupKey:
    """The key of a case on a device (identity digest) with a toolchain (fingerprint)."""
    return LookupKey(
        program_digest=program_digest(case.program, case.params),
        dims=dict(case.dims),
        dtypes=dict(case.dtypes),
        device=device,
        toolchain=toolchain,
        cache_context=cache_context,
    )


def kernel_row(case: Case) -> KernelRow:
    """What a lookup must know of the case's kernel: program digest, dims in order, how dtypes and params complete."""
    program = case.program
    return KernelRow(
        name=case.kernel,
        params=dict(case.params),
        program_digest=program_digest(program, case.params),
        dtypes=tensor_dtypes(program, {}),
        dims=tuple(program.dims),
        like={tensor.name: tensor.like for tensor in program.tensors if tensor.like is not None},
        param_defaults={param.name: param.default for param in program.params},
        program=dump_program(program) if case.from_document else None,
    )


def settled_key(settled: Mapping[str, Any], *, device: str, toolchain: str) -> LookupKey:
    """The key under which a settled case's entries are found. Needs ``case`` and ``program_digest``, and
    ``cache_context`` where that was not warm."""
    case = settled["case"]
    return LookupKey(
        program_digest=settled["program_digest"],
        dims=dict(case["dims"]),
        dtypes=dict(case["dtypes"]),
        device=device,
        toolchain=toolchain,
        cache_context=settled.get("cache_context") or "warm",
    )


def entry_of(settled: Mapping[str, Any], *, role: Role = "candidate") -> Entry:
    """The entry of a settled case in a role; KeyError or TypeError when it has no such trial.

    ``artifact`` is that of the fresh build, where there was one. A settled case with ``search_sha256`` binds its entry
    to that search.
    """
    device, trial = settled["device"], settled[_TRIAL_OF[role]]
    protocol, samples_seconds, sittings = _deciding_samples(settled, trial)
    fresh = _fresh(settled).get(trial["id"])
    artifact = fresh.artifact.document() if fresh is not None and fresh.artifact is not None else None
    return Entry(
        key=settled_key(settled, device=device["identity_digest"], toolchain=device["toolchain_fingerprint"]),
        kernel=settled["case"]["kernel"],
        params=dict(settled["case"]["params"]),
        candidate=trial["candidate"],
        plan=trial["plan"],
        code=trial["code"],
        # what was done then: a later version may take more samples under the same name
        protocol=replace(PROTOCOLS[protocol], samples=len(samples_seconds), sittings=sittings).document(),
        numerics=trial["code"].get("numerics", {}),
        median_seconds=median(samples_seconds),
        samples_sha256=sha256_hex(samples_seconds),
        tie_set=tuple(settled[_TIES_OF[role]]),
        job_id=settled["job_id"],
        trial_id=trial["id"],
        artifact=artifact and {name: artifact[name] for name in _NEEDED_TO_LOAD if name in artifact},
        extra={name: settled[name] for name in (SEARCH_SHA256,) if name in settled},
    )


def why_left_out(settled: Mapping[str, Any]) -> str | None:
    """Why a settled case cannot be frozen, or None.

    It needs a winner, a reference and a measured default, and of winner and reference the record that a build alone,
    in a new process, gave the same source, machine code and plan as the batch did, and passed every check again.
    """
    if settled["winner"] is None:
        return f"it has no winner: {settled.get('error') or 'nothing in its space was measured'}"
    if settled["reference"] is None:
        return "it has no reference: its space holds no measured candidate that reloads its inputs"
    default = settled["default"]
    if default is None or default["outcome"] != "measured":
        return "its default was not measured, so there is nothing to accept the winner against"
    events = [event_from_document(event) for event in settled["events"] if event["event"] == "revalidated"]
    validated = {event.trial: event for event in events if isinstance(event, Revalidated)}
    for what in ("winner", "reference"):
        record = validated.get(settled[what]["id"])
        if record is None:
            return f"its {what} was not built and checked again in a new process"
        if not record.passed:
            return f"its {what}, built again in a new process, {_difference(record)}"
    return None


def _difference(record: Revalidated) -> str:
    same = {"source": record.same_source, "machine code": record.same_machine_code, "plan": record.same_plan}
    differs = [name for name, equal in same.items() if not equal]
    return f"differs in {', '.join(differs)}" if differs else "does not pass its checks"


def _fresh(settled: Mapping[str, Any]) -> dict[str, FreshBuilt]:
    found = [event_from_document(event) for event in settled["events"] if event["event"] == "fresh_built"]
    return {event.trial: event for event in found if isinstance(event, FreshBuilt)}


def _deciding_samples(settled: Mapping[str, Any], trial: Mapping[str, Any]) -> tuple[str, list[float], int]:
    """Protocol, samples (seconds) that chose the trial, and the processes they were spread over: of the last finals
    that it was in, else of the search."""
    for event in reversed(settled["events"]):
        if event["event"] == "finals_measured" and not event.get("phases_only"):
            taken = event["samples"]["samples_seconds"]
            for trial_id in (trial["id"], trial["same_code_as"]):
                if taken.get(trial_id):
                    return event["samples"]["protocol"], list(taken[trial_id]), event["samples"].get("sittings", 1)
    return settled["protocol"], list(trial["timing"]["device_batch"]["samples_seconds"]), 1

"""The evidence bundle of an acceptance: everything that was recorded, as docs/reference/evidence.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from catalogs import sha256_hex
from search.device.spec import DeviceSpec
from search.measuring.protocol import PROTOCOLS
from search.replay.conclude import Conclusion
from search.replay.records import ArmTimed, ReplayState
from search.selection.acceptance import INCONCLUSIVE_ABOVE, MARGIN_FLOOR, METRICS
from search.selection.replay import ReplayCase
from search.selection.searched import searched_case

SCHEMA_VERSION = 1
KIND = "acceptance_evidence"


def bundle(
    acceptance_id: str,
    state: ReplayState,
    conclusion: Conclusion,
    *,
    device: DeviceSpec,
    catalogs: Mapping[str, Any],
    search: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The bundle, sealed with its sha256. ``catalogs``: candidate, reference and incumbent documents (or None);
    ``search``: one search bundle for each job that they were frozen from."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "id": acceptance_id,
        "scope": {
            "device": {"kind": device.kind, "identity": dict(device.identity), "digest": device.identity_digest},
            "toolchain": dict(device.toolchain),
            "toolchain_fingerprint": device.toolchain_fingerprint,
            "threads": 1,
            "cache_context": state.replay.cache_context,
        },
        "rounds": state.replay.rounds,
        "protocol": PROTOCOLS["acceptance"].document(),
        "metrics": list(METRICS),
        "margin_rule": {"floor": MARGIN_FLOOR, "inconclusive_above": INCONCLUSIVE_ABOVE},
        "catalogs": {role: catalogs[role] for role in ("candidate", "reference", "incumbent")},
        "cases": [_case(case, state) for case in conclusion.replay.cases],
        "builds": _builds(state, conclusion),
        "records": _records(acceptance_id, state, conclusion, device),
        "search": [dict(one) for one in search],
        "results": {
            "cases": [result.document() for result in conclusion.results],
            "verdict": conclusion.verdict,
            "reasons": list(conclusion.reasons),
        },
        "statements": list(conclusion.statements),
    }
    return {**document, "sha256": sha256_hex(document)}


def search_bundle(
    job_id: str, cases: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]
) -> dict[str, Any]:
    """The search bundle of a job. ``cases``: (case row as ``searched_case`` wants it, its trial documents)."""
    return {"job_id": job_id, "cases": [searched_case(row, trials) for row, trials in cases]}


def _case(replayed: ReplayCase, state: ReplayState) -> dict[str, Any]:
    case = replayed.case
    arms: dict[str, Any] = {
        name: _plain(vars(replayed.arms[name])) if name in replayed.arms else None for name in ("R", "C", "D", "I", "A")
    }
    told = [
        one.torch
        for _, records in sorted(state.timed.items())
        for one in records
        if one.case == replayed.index and one.torch is not None
    ]
    arms["T"] = dict(told[0]) if replayed.torch and told else None
    return {
        "index": replayed.index,
        "kernel": case["kernel"],
        "params": dict(case["params"]),
        "dims": dict(case["dims"]),
        "dtypes": dict(case["dtypes"]),
        "key_digest": replayed.key_digest,
        "arms": arms,
    }


def _builds(state: ReplayState, conclusion: Conclusion) -> list[dict[str, Any]]:
    """What every kernel arm came out as in every round, those that are not timed themselves too."""
    found = []
    for number, built in sorted(state.built.items()):
        for case in conclusion.replay.cases:
            for build in built.builds:
                if build.case == case.index and build.arm in case.arms and build.artifact is not None:
                    found.append(
                        {
                            "round": number,
                            "case": build.case,
                            "arm": build.arm,
                            "source_sha256": build.artifact.source_sha256,
                            "artifact_sha256": build.artifact.artifact_sha256,
                            "plan": build.plan,
                            "build_process": built.process,
                        }
                    )
    return found


def _records(
    acceptance_id: str, state: ReplayState, conclusion: Conclusion, device: DeviceSpec
) -> list[dict[str, Any]]:
    cases = conclusion.replay.cases
    found = []
    for number, records in sorted(state.timed.items()):
        kept = [one for one in records if one.failure is None and one.arm in cases[one.case].measured]
        found += [
            _record(acceptance_id, one, position, state, cases[one.case], device) for position, one in enumerate(kept)
        ]
        assert all(one.round == number for one in kept)
    return found


def _record(
    acceptance_id: str, one: ArmTimed, position: int, state: ReplayState, case: ReplayCase, device: DeviceSpec
) -> dict[str, Any]:
    arm = "C" if one.arm == "A" else one.arm
    build = None if arm == "T" else state.built[one.round].build(one.case, arm)
    artifact = build.artifact if build is not None else None
    timing = {metric: one.timing[metric].document() for metric in METRICS}
    return {
        "id": f"{acceptance_id}/{one.round}/{one.case}/{one.arm}",
        "round": one.round,
        "position": position,
        "case": one.case,
        "arm": one.arm,
        "source_sha256": artifact.source_sha256 if artifact else None,
        "artifact_sha256": artifact.artifact_sha256 if artifact else None,
        "plan": build.plan if build else None,
        "candidate": dict(case.arms[arm].candidate) if build else None,
        "toolchain_fingerprint": device.toolchain_fingerprint,
        "device_digest": device.identity_digest,
        "build_process": state.built[one.round].process if build else None,
        "started_at": one.started_at,
        "finished_at": one.finished_at,
        "started_monotonic_seconds": one.started_monotonic_seconds,
        "finished_monotonic_seconds": one.finished_monotonic_seconds,
        "timing": timing,
        "samples_sha256": sha256_hex(timing),
        "checks": one.checks.document() if one.checks is not None else None,
    }


def _plain(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in members.items()}

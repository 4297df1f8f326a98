"""Evidence bundles for tests, written from docs/reference/evidence.md alone. Imported by path from several folders.

``bundle()`` is a valid one; its figures come from the ``statistics`` module, to set the auditor's against others.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from catalogs import DeviceIdentity, Entry, KernelRow, LookupKey, freeze

TOOLCHAIN = {"compiler": {"version": "gcc 12.2.0"}, "flags": ["-O3"], "tilelang": {"version": "0.1.15"}}
DEVICE = DeviceIdentity(kind="cpu", identity={"architecture": "x86_64", "model": "A CPU™", "caches": [{"level": 1}]})
NUMERICS = {"accumulation": "float32"}
ONE_VALUE: Mapping[str, list[Any]] = {
    "input": ["reload"],
    "fusion": ["separate"],
    "materialize": ["private"],
    "vector": [1],
    "unroll": [1],
    "partials": [1],
}
"""The knobs of every candidate that have one value in the space."""
KERNELS = ("rms_norm", "softmax", "layer_norm")
METRICS = ("device_batch", "e2e_batch")
ELEMENTS = 4096
"""Checked in each input set of the first case; of the second twice as many, and so on."""
OPPONENTS = {"reference": "R", "default": "D", "incumbent": "I", "torch": "T"}
TIMES = {"R": 1.10, "C": 1.0, "D": 1.45, "I": 1.05, "T": 1.9, "A": 1.0}
"""Seconds of each arm in units of the candidate's, before noise."""


def canonical(document: Any) -> bytes:
    """Canonical JSON."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha(document: Any) -> str:
    """sha256 of canonical JSON; of a text, a sha256 that stands for a named thing."""
    data = document.encode() if isinstance(document, str) else canonical(document)
    return hashlib.sha256(data).hexdigest()


def sealed(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """The bundle with the sha256 that its contents have: what an attacker can always work out."""
    out = {name: value for name, value in bundle.items() if name != "sha256"}
    return {**out, "sha256": sha(out)}


def bundle(
    *,
    cases: int = 2,
    rounds: int = 4,
    incumbent: bool = True,
    torch: bool = True,
    same: Mapping[str, str] | None = None,
    times: Mapping[str, float] | None = None,
    noise: float = 0.004,
    seed: int = 1,
) -> dict[str, Any]:
    """A valid bundle. ``same``: arm → the arm that is measured in its stead, in the first and every other case."""
    chosen = random.Random(seed)
    identities = [_identity(index) for index in range(cases)]
    codes = [_codes(index, (same or {}) if index % 2 == 0 else {}) for index in range(cases)]
    documents = [
        _case(identity, code, incumbent=incumbent, torch=torch)
        for identity, code in zip(identities, codes, strict=True)
    ]
    search = search_bundle(documents)
    catalogs = {
        "candidate": _catalog("candidate", "C", identities, codes, search),
        "reference": _catalog("reference", "R", identities, codes, search),
        "incumbent": _catalog("candidate", "I", identities, codes, search) if incumbent else None,
    }
    records = _records(documents, rounds, {**TIMES, **(times or {})}, noise, chosen)
    out = {
        "schema_version": 1,
        "kind": "acceptance_evidence",
        "id": "acc_test",
        "scope": {
            "device": {"kind": DEVICE.kind, "identity": dict(DEVICE.identity), "digest": DEVICE.digest},
            "toolchain": TOOLCHAIN,
            "toolchain_fingerprint": sha(TOOLCHAIN),
            "threads": 1,
            "cache_context": "warm",
        },
        "rounds": rounds,
        "protocol": {"name": "acceptance", "warmup_seconds": 0.2, "samples": 9, "batch_seconds": 0.03},
        "metrics": list(METRICS),
        "margin_rule": {"floor": 0.02, "inconclusive_above": 0.15},
        "catalogs": catalogs,
        "cases": documents,
        "builds": _builds(documents, rounds),
        "records": records,
        "search": [search],
        "results": results(documents, records, rounds),
        "statements": ["This device, this toolchain, these shapes.", "Ranges are observed, not intervals."],
    }
    return sealed(json.loads(canonical(out)))


def results(cases: Sequence[Any], records: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Results as the page says, by the ``statistics`` module."""
    values = {
        (record["round"], record["case"], record["arm"]): {
            metric: statistics.median(record["timing"][metric]["samples_seconds"]) for metric in METRICS
        }
        for record in records
    }
    judged = [_result(case, values, rounds) for case in cases]
    bad = [result for result in judged if result["state"] != "ok"]
    return {
        "cases": judged,
        "verdict": "rejected" if bad else "accepted",
        "reasons": [f"case {result['index']} is {result['state']}" for result in bad],
    }


def search_bundle(cases: Sequence[Any]) -> dict[str, Any]:
    """The search that the cases' trials came from: winner, reference, a shared timing, rejections, default outside."""
    return {"job_id": "job_1", "cases": [_searched(case) for case in cases]}


def _result(case: Mapping[str, Any], values: Mapping[Any, Any], rounds: int) -> dict[str, Any]:
    arms = case["arms"]

    def column(arm: str, metric: str) -> list[float]:
        timed = arms[arm].get("same_code_as") or arm
        return [values[number, case["index"], timed][metric] for number in range(rounds)]

    metrics: dict[str, dict[str, Any]] = {metric: {} for metric in METRICS}
    for metric in METRICS:
        for name, arm in OPPONENTS.items():
            if arms[arm] is None:
                metrics[metric][name] = None
                continue
            ratios = [x / c for x, c in zip(column(arm, metric), column("C", metric), strict=True)]
            control = arm != "T" and arms[arm]["artifact_sha256"] == arms["C"]["artifact_sha256"]
            signs = {ratio > 1 for ratio in ratios if ratio != 1} | ({True, False} if 1 in ratios else set())
            word = {(True,): "positive", (False,): "negative"}.get(tuple(signs), "mixed")
            metrics[metric][name] = {
                "class": "control" if control else word,
                "ratio_median": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
    pairs = zip(column("A", "device_batch"), column("C", "device_batch"), strict=True)
    spread = max(abs(a / c - 1) for a, c in pairs)
    margin = max(0.02, spread)
    deciding = [metrics["device_batch"][name] for name in ("reference", "default", "incumbent")]
    worse = any(found["ratio_median"] < 1 - margin for found in deciding if found)
    return {
        **{name: case[name] for name in ("index", "kernel", "params", "dims")},
        "metrics": metrics,
        "spread": spread,
        "margin": margin,
        "state": "inconclusive" if spread > 0.15 else "worse" if worse else "ok",
    }


def _builds(cases: Sequence[Any], rounds: int) -> list[dict[str, Any]]:
    return [
        {
            "round": number,
            "case": case["index"],
            "arm": arm,
            **{name: case["arms"][arm][name] for name in ("source_sha256", "artifact_sha256", "plan")},
            "build_process": _process(number),
        }
        for number in range(rounds)
        for case in cases
        for arm in ("C", "R", "D", "I")
        if case["arms"][arm] is not None
    ]


def _process(number: int) -> str:
    return f"round {number}, process {100 + number}"


def _records(
    cases: Sequence[Any], rounds: int, times: Mapping[str, float], noise: float, chosen: random.Random
) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number in range(rounds):
        place = 0
        for case in [*cases[number % len(cases) :], *cases[: number % len(cases)]]:
            for arm in _arm_order(number):
                spec = case["arms"][arm]
                if spec is None or spec.get("same_code_as"):
                    continue
                seconds = times[arm] * 1e-5 * (1 + case["index"])
                record = _record(case, arm, number, place, seconds, noise, chosen)
                records.append({"id": f"rec_{len(records)}", **record, **_clocks(len(records))})
                place += 1
    return records


def _arm_order(number: int) -> list[str]:
    kernels = [["R", "C"], ["C", "R"]][number & 1]
    rest = [["D", "I", "A"], ["I", "A", "D"], ["A", "D", "I"]][number % 3]
    return [*([*kernels, "T"], ["T", *kernels])[number >> 1 & 1], *rest]


def _clocks(place: int) -> dict[str, Any]:
    start = datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=UTC) + timedelta(seconds=3 * place)
    end = start + timedelta(seconds=2.5)
    return {
        "started_at": start.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "finished_at": end.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "started_monotonic_seconds": 5000.5 + 3 * place,
        "finished_monotonic_seconds": 5003.0 + 3 * place,
    }


def _record(
    case: Mapping[str, Any], arm: str, number: int, place: int, seconds: float, noise: float, chosen: random.Random
) -> dict[str, Any]:
    timing = {}
    for metric in METRICS:
        value = seconds * (1.2 if metric == "e2e_batch" else 1.0) * (1 + chosen.uniform(-noise, noise))
        value *= 1 + 1e-11 * (1 + place + 97 * number)  # clocks count nanoseconds: no two records are equal
        samples = [value * (1 + chosen.uniform(-noise, noise) + 1e-6 * n) for n in range(9)]
        timing[metric] = {
            "samples_seconds": samples,
            "calls_per_sample": max(1, int(0.03 / value)),
            "median_seconds": statistics.median(samples),
        }
    spec = case["arms"][arm]
    what = ("source_sha256", "artifact_sha256", "plan", "candidate")
    return {
        "round": number,
        "position": place,
        "case": case["index"],
        "arm": arm,
        **{name: None if arm == "T" else spec[name] for name in what},
        "toolchain_fingerprint": sha(TOOLCHAIN),
        "device_digest": DEVICE.digest,
        "build_process": None if arm == "T" else _process(number),
        "timing": timing,
        "samples_sha256": sha(timing),
        "checks": checks(case["index"]),
    }


def checks(index: int) -> dict[str, Any]:
    """A correctness record of a case."""
    inputs = [
        {
            "name": name,
            "elements_checked": ELEMENTS * (index + 1),
            "guard_elements_checked": 204,
            "input_sha256": sha(f"inputs {index} {name}"),
            "tolerance": "the rule in words",
            "max_abs_error": 1e-7,
            "max_rel_error": 2e-7,
            "max_ulp_error": None if name == "edge_rows" else 1.0,
            "max_tolerance": 1e-6,
            "failures": 0,
            "first_failure": None,
            "patterns": [],
        }
        for name in ("normal", "large_offset", "edge_rows")
    ]
    return {"passed": True, "inputs": inputs, "guards_intact": True, "inputs_unchanged": True}


def _identity(index: int) -> dict[str, Any]:
    kernel = KERNELS[index % 3]
    params = {} if kernel == "softmax" else {"eps": 1e-6}
    key = LookupKey(
        program_digest=sha(f"program {kernel}"),
        dims={"rows": 64 * (1 + index // 3), "cols": 256},
        dtypes={"x": "float32", "y": "float32"},
        device=DEVICE.digest,
        toolchain=sha(TOOLCHAIN),
    )
    return {"index": index, "kernel": kernel, "params": params, "key": key}


def _codes(index: int, same: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What each kernel arm of a case is."""
    arms = {}
    for place, name in enumerate(("R", "C", "D", "I")):
        shared = same.get(name)
        arms[name] = {
            "trial_id": f"trl_{index}_{name}",
            "candidate": candidate(width=8 << place),
            "plan": {"private_scalars": place, "score": 100.0 + place, "demand": {"available": True}},
            "source_sha256": sha(f"source {index} {name}"),
            "artifact_sha256": sha(f"code {index} {shared or name}"),
            "same_code_as": shared,
        }
    return arms


def candidate(*, width: int) -> dict[str, Any]:
    """A candidate of that width."""
    mapping = {"local_lanes": width, "row_block": 1, "simd_scope": "main", "nontemporal": False}
    return {"width": width, **{name: values[0] for name, values in ONE_VALUE.items()}, "mapping": mapping}


def _case(identity: Mapping[str, Any], codes: Mapping[str, Any], *, incumbent: bool, torch: bool) -> dict[str, Any]:
    key = identity["key"]
    arms = copy.deepcopy(dict(codes))
    if not incumbent:
        arms["I"] = None
    versions = {"torch": "2.13.0"}
    return {
        **{name: identity[name] for name in ("index", "kernel", "params")},
        "dims": dict(key.dims),
        "dtypes": dict(key.dtypes),
        "key_digest": key.digest,
        "arms": {
            **arms,
            "A": {**copy.deepcopy(codes["C"]), "same_code_as": None},
            "T": {"implementation": "torch.softmax(x)", "allocation": "preallocated (out=)", "versions": versions}
            if torch
            else None,
        },
    }


def _catalog(
    role: str, arm: str, identities: Sequence[Any], codes: Sequence[Any], search: Mapping[str, Any]
) -> dict[str, Any]:
    entries, rows = [], {}
    for identity, code, searched in zip(identities, codes, search["cases"], strict=True):
        key, spec = identity["key"], code[arm]
        entries.append(
            Entry(
                key=key,
                kernel=identity["kernel"],
                params=identity["params"],
                candidate=spec["candidate"],
                plan=spec["plan"],
                code={name: spec[name] for name in ("source_sha256", "artifact_sha256")} | {"numerics": NUMERICS},
                protocol={"name": "finals"},
                numerics=NUMERICS,
                median_seconds=1e-5,
                samples_sha256=sha(f"samples {spec['trial_id']}"),
                tie_set=(spec["trial_id"],),
                job_id="job_0" if arm == "I" else "job_1",
                trial_id=spec["trial_id"],
                extra={} if arm == "I" else {"search_sha256": sha(searched)},
            )
        )
        rows[identity["kernel"]] = KernelRow(
            name=identity["kernel"],
            params=identity["params"],
            program_digest=key.program_digest,
            dtypes=dict(key.dtypes),
            dims=("rows", "cols"),
        )
    return freeze(entries, role=role, kernels=rows.values(), device=DEVICE, toolchain=TOOLCHAIN).document()


def _searched(case: Mapping[str, Any]) -> dict[str, Any]:
    checked = 3 * ELEMENTS * (case["index"] + 1)
    index, arms = case["index"], case["arms"]
    trials = [
        _trial(arms["C"]["trial_id"], arms["C"]["candidate"], private_scalars=arms["C"]["plan"]["private_scalars"]),
        _trial(arms["R"]["trial_id"], arms["R"]["candidate"], private_scalars=arms["R"]["plan"]["private_scalars"]),
        _trial(f"trl_{index}_twin", candidate(width=128), same_code_as=arms["R"]["trial_id"]),
        _rejected(f"trl_{index}_budget", candidate(width=256), "constraints", "private_budget"),
        _rejected(f"trl_{index}_wrong", candidate(width=512), "correctness", "wrong_values"),
    ]
    scalars = arms["D"]["plan"]["private_scalars"]
    default = _trial(
        arms["D"]["trial_id"], arms["D"]["candidate"], in_space=False, is_default=True, private_scalars=scalars
    )
    return {
        "kernel": case["kernel"],
        "dims": case["dims"],
        "space": {
            "width": sorted(trial["candidate"]["width"] for trial in trials),
            **ONE_VALUE,
            "local_lanes": ["width"],
            "row_block": [1],
            "simd_scope": ["main"],
            "nontemporal": [False],
        },
        "inert_knobs": ["fusion"],
        "enumerated": len(trials),
        "trials": [
            {**trial, "elements_checked": checked if trial["elements_checked"] else None}
            for trial in (*trials, default)
        ],
    }


def _trial(name: str, what: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    samples = [1.25e-5, 1.5e-5, 1.0e-5, 1.125e-5, 1.75e-5]
    return {
        "id": name,
        "outcome": "measured",
        "stage": None,
        "reason": None,
        "candidate": dict(what),
        "in_space": True,
        "is_default": False,
        "median_seconds": statistics.median(samples),
        "samples_seconds": samples,
        "same_code_as": None,
        "checks_passed": True,
        "elements_checked": 4096,
        "private_scalars": 0,
        **changes,
    }


def _rejected(name: str, what: Mapping[str, Any], stage: str, reason: str) -> dict[str, Any]:
    return _trial(
        name,
        what,
        outcome="rejected",
        stage=stage,
        reason=reason,
        median_seconds=None,
        samples_seconds=None,
        checks_passed=None,
        elements_checked=None,
    )

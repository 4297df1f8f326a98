"""Documents in words: candidates, cases, times, outcomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTHING = "–"


def candidate_words(candidate: Mapping[str, Any]) -> str:
    """A candidate as ``W32 reload output simd:all nt``; knobs at their plain value are left out."""
    given = candidate["input"]
    words = [f"W{candidate['width']}"]
    words.append(given if isinstance(given, str) else ",".join(f"{k}:{v}" for k, v in sorted(given.items())))
    if candidate.get("fusion") == "fused":
        words.append("fused")
    words.append(str(candidate["materialize"]))
    if "algorithm" in candidate:
        words.append(str(candidate["algorithm"]))
    words += [f"{short}{candidate[knob]}" for knob, short in _COUNTS if candidate.get(knob, 1) != 1]
    mapping = candidate.get("mapping") or {}
    if mapping.get("local_lanes", candidate["width"]) != candidate["width"]:
        words.append(f"L{mapping['local_lanes']}")
    words += [f"{short}{mapping[knob]}" for knob, short in _MAPPING_COUNTS if mapping.get(knob, 1) != 1]
    if "simd_scope" in mapping:
        words.append(f"simd:{mapping['simd_scope']}")
    if mapping.get("nontemporal"):
        words.append("nt")
    if mapping.get("min_blocks"):
        words.append(f"min_blocks{mapping['min_blocks']}")
    return " ".join(words)


_COUNTS = (("vector", "V"), ("unroll", "U"), ("partials", "P"))
_MAPPING_COUNTS = (("row_block", "rows×"), ("rows_per_block", "R"))


def case_words(case: Mapping[str, Any]) -> str:
    """A case as ``softmax 64×256``."""
    return f"{case['kernel']} {'×'.join(str(extent) for extent in case['dims'].values())}"


def seconds_words(seconds: float | None) -> str:
    """A duration with a unit that fits: ``12.3 µs``."""
    if seconds is None:
        return NOTHING
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 100 else f"{seconds * scale:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def percent_words(fraction: float | None) -> str:
    """A fraction as a percentage: ``3.1 %``."""
    return NOTHING if fraction is None else f"{fraction * 100:.1f} %"


def ratio_words(ratio: Mapping[str, float] | None) -> str:
    """A ratio with the range that was observed: ``0.42 [0.40, 0.47]``."""
    if ratio is None:
        return NOTHING
    return f"{times_words(ratio['median'])} [{times_words(ratio['min'])}, {times_words(ratio['max'])}]"


def times_words(ratio: float) -> str:
    """One ratio: two decimals, or two significant digits where those would hide it: ``0.42``, ``0.00034``."""
    if abs(ratio) >= 0.095 or ratio == 0:
        return f"{ratio:.2f}"
    return f"{ratio:.2g}" if abs(ratio) >= 1e-4 else f"{ratio:.1e}"


def median_seconds(trial: Mapping[str, Any] | None, phase: str = "device_batch") -> float | None:
    """A trial's median in one phase, None when it was not measured."""
    timing = ((trial or {}).get("timing") or {}).get(phase)
    return timing["median_seconds"] if timing else None


def outcome_words(trial: Mapping[str, Any]) -> str:
    """How a trial ended: ``measured``, ``rejected: constraints/private_budget``."""
    if trial["outcome"] != "rejected":
        return str(trial["outcome"])
    return f"rejected: {trial['stage']}/{trial['reason']}"


def detail_words(detail: Mapping[str, Any] | None) -> str:
    """A rejection's numbers: ``private_scalars=129, budget=64``; long values are cut."""
    parts = []
    for name, value in (detail or {}).items():
        text = str(value).strip().replace("\n", " ")
        parts.append(f"{name}={text if len(text) <= 80 else text[:80] + '…'}")
    return ", ".join(parts)


def state_words(job: Mapping[str, Any]) -> str:
    """A job's state, and whether it waits for something that is not its turn."""
    return f"{job['state']}, waits" if job.get("waiting") else str(job["state"])


def in_flight_words(job: Mapping[str, Any]) -> str:
    """What a job's tasks do, or wait to do: ``compiling 4, measuring 8``; empty where nobody says."""
    parts = []
    for one in job.get("in_flight") or ():
        doing = _DOING.get(one["step"], str(one["step"]))
        parts.append(f"{doing} {one['trials']}" if one["trials"] else doing)
    return ", ".join(parts)


_DOING = {
    "build": "compiling",
    "measure": "measuring",
    "check": "simulating",
    "share_code": "checking",
    "finals": "measuring finals of",
    "baseline": "measuring a baseline",
    "fresh_build": "compiling anew",
    "revalidate": "comparing",
}

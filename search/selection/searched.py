"""One case's search as evidence: every trial of its space, so that none can vanish after a winner was frozen.

Frozen entries name the sha256 of this document, and evidence holds it: both make it from the job's ledger alone, and
an ended job's ledger does not change, so both make the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from catalogs import sha256_hex

SEARCH_SHA256 = "search_sha256"
"""The member of a frozen entry that names its search."""


def searched_case(row: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The search bundle's document of a case. ``row``: the case's ``case, space, inert_knobs, enumerated``; ``trials``:
    its trial documents, in any order: they are listed in that of the ledger (``ordinal``)."""
    return {
        **{name: row["case"][name] for name in ("kernel", "params", "dims", "dtypes")},
        "space": {name: list(values) for name, values in row["space"].items()},
        "inert_knobs": list(row["inert_knobs"]),
        "enumerated": row["enumerated"],
        "trials": [_trial(trial) for trial in sorted(trials, key=lambda trial: int(trial["ordinal"]))],
    }


def search_sha256(row: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> str:
    """sha256 (hex) of the canonical JSON of :func:`searched_case`."""
    return sha256_hex(searched_case(row, trials))


def _trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    measured = trial["outcome"] == "measured"
    batch = ((trial["timing"] or {}).get("device_batch") or {}) if measured else {}
    checks = trial["checks"] or {}
    return {
        "id": trial["id"],
        "outcome": trial["outcome"],
        "stage": trial["stage"],
        "reason": trial["reason"],
        "candidate": trial["candidate"],
        "in_space": trial["in_space"],
        "is_default": trial["is_default"],
        "median_seconds": batch.get("median_seconds"),
        "samples_seconds": batch.get("samples_seconds"),
        "same_code_as": trial["same_code_as"],
        "checks_passed": checks.get("passed"),
        "elements_checked": sum(one["elements_checked"] for one in checks.get("inputs", ())),
        "private_scalars": (trial["plan"] or {}).get("private_scalars"),
    }

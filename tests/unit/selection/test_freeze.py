"""What an entry says of the samples that chose it."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs import sha256_hex
from search.events import FinalsMeasured, event_document
from search.measuring.protocol import FinalsSamples
from search.program.resolve import resolve_case
from search.selection.freeze import entry_of

CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 5, "cols": 64}})


def settled(*events: FinalsMeasured) -> dict[str, Any]:
    trial = {
        "id": "trl_1",
        "candidate": {"width": 8},
        "plan": {"n": 1},
        "code": {"source_sha256": "a", "artifact_sha256": "b"},
        "same_code_as": None,
        "timing": {"device_batch": {"samples_seconds": [7.0, 7.0, 7.0]}},
    }
    return {
        "job_id": "job_1",
        "case": CASE.document(),
        "program_digest": "c" * 64,
        "device": {"identity_digest": "d" * 64, "toolchain_fingerprint": "e" * 64},
        "protocol": "search",
        "winner": trial,
        "reference": trial,
        "tie_set": ["trl_1"],
        "reference_tie_set": ["trl_1"],
        "events": [event_document(event) for event in events],
    }


def finals(seconds: float, *, sittings: int, phases_only: bool = False) -> FinalsMeasured:
    samples = FinalsSamples(
        order=("trl_1",),
        protocol="finals",
        samples_seconds={"trl_1": (seconds,) * 18},
        extra_phases={},
        sittings=sittings,
    )
    return FinalsMeasured(samples=samples, phases_only=phases_only)


def test_an_entry_is_chosen_by_the_finals_and_without_any_by_the_search() -> None:
    assert entry_of(settled()).median_seconds == 7.0
    entry = entry_of(settled(finals(3.0, sittings=9)))
    assert (entry.median_seconds, entry.protocol["sittings"]) == (3.0, 9)


@pytest.mark.parametrize("sittings", [1, 9])
def test_rounds_that_only_took_phases_chose_nothing(sittings: int) -> None:
    """One process takes the phases of a winner that was not the provisional one (before: nine)."""
    entry = entry_of(settled(finals(3.0, sittings=9), finals(5.0, sittings=sittings, phases_only=True)))
    assert (entry.median_seconds, entry.protocol["sittings"]) == (3.0, 9)
    assert entry.samples_sha256 == sha256_hex([3.0] * 18)

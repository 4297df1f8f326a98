"""Figures of a record that no ratio needs: calls, errors, timestamps; and what an entry says of its own code."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_factory as make
from bundle_damage import PLAIN, Bundle, Damage, record, refuses

from catalogs.audit import audit

HERE = "round 2, case 1, arm {}"
METRICS = ("device_batch", "e2e_batch")


def called(arm: str, metric: str, calls: float) -> Damage:
    """Calls per sample set to so many of the honest ones, and the digest of the timing worked out again."""

    def damage(bundle: Bundle) -> None:
        one = record(bundle, 2, 1, arm)
        phase = one["timing"][metric]
        phase["calls_per_sample"] = max(1, round(phase["calls_per_sample"] * calls))
        one["samples_sha256"] = make.sha(one["timing"])

    return damage


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("arm", ["R", "C", "D", "I", "A", "T"])
def test_calls_that_do_not_make_a_batch(arm: str, metric: str) -> None:
    field = f"timing.{metric}.calls_per_sample"
    for calls in (0, 0.001, 0.009, 120, 300):
        refuses(called(arm, metric, calls), HERE.format(arm), field, "of the protocol's batches")


@pytest.mark.parametrize("calls", [0.02, 0.18, 0.5, 2, 4.5])
def test_a_calibration_on_a_busy_machine_passes(calls: float) -> None:
    bundle: Any = make.bundle()
    called("C", "device_batch", calls)(bundle)
    assert audit(make.sealed(bundle)).findings == ()


def test_one_call_may_last_longer_than_a_batch() -> None:
    """Kernels of 0.1 s: a sample is a single call, and the clocks have room for all of them."""
    bundle: Any = make.bundle(cases=1)
    for one in bundle["records"]:
        for phase in one["timing"].values():
            phase["samples_seconds"] = [sample * 1.5e4 for sample in phase["samples_seconds"]]
            phase["median_seconds"], phase["calls_per_sample"] = sorted(phase["samples_seconds"])[4], 1
        one["samples_sha256"] = make.sha(one["timing"])
    found = [f for f in audit(make.sealed(bundle)).findings if "calls_per_sample" in f.field]
    assert found == []


@pytest.mark.parametrize("arm", ["R", "C", "D", "I", "A", "T"])
@pytest.mark.parametrize("place", range(3))
def test_an_error_beyond_the_tolerance_that_has_passed(arm: str, place: int) -> None:
    def damage(bundle: Bundle) -> None:
        record(bundle, 2, 1, arm)["checks"]["inputs"][place]["max_abs_error"] = 1.1e-6

    refuses(damage, HERE.format(arm), f"checks.inputs[{place}].max_abs_error", "beyond the largest tolerance")


def test_errors_that_are_not_finite_are_null_and_an_error_may_be_the_tolerance() -> None:
    bundle: Any = make.bundle()
    first, second, third = record(bundle, 2, 1, "C")["checks"]["inputs"]
    first["max_abs_error"] = None
    second["max_tolerance"] = None
    third["max_abs_error"] = third["max_tolerance"]
    assert audit(make.sealed(bundle)).findings == ()


def test_timestamps_that_are_yet_to_come() -> None:
    """Every record moved by as much, so that no clock contradicts another."""

    def moved(days: float) -> Damage:
        then = datetime.fromisoformat(PLAIN["records"][-1]["finished_at"])
        by = datetime.now(UTC) + timedelta(days=days) - then

        def damage(bundle: Bundle) -> None:
            for one in bundle["records"]:
                for field in ("started_at", "finished_at"):
                    moment = datetime.fromisoformat(one[field]) + by
                    one[field] = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

        return damage

    refuses(moved(2), "records[0]", "started_at", "yet to come")
    refuses(moved(2), "records[47]", "finished_at", "yet to come")
    bundle: Any = make.bundle()
    moved(0.5)(bundle)
    assert audit(make.sealed(bundle)).findings == ()


@pytest.mark.parametrize("redigest", [False, True])
@pytest.mark.parametrize("role", ["candidate", "reference", "incumbent"])
def test_an_entry_that_contradicts_itself(role: str, redigest: bool) -> None:
    edits: dict[str, Any] = {"numerics": {"accumulation": "float64"}, "samples_sha256": "F" * 64}
    for field, value in edits.items():

        def damage(bundle: Bundle, field: str = field, value: Any = value) -> None:
            catalog = bundle["catalogs"][role]
            catalog["entries"][0][field] = value
            if redigest:
                del catalog["digest"]
                catalog["digest"] = make.sha(catalog)

        refuses(damage, f"catalogs.{role}.entries[0]", field)
        if not redigest:
            refuses(damage, f"catalogs.{role}", "digest")

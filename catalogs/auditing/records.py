"""The records of an acceptance, one by one: what was run is what was frozen, and its samples and checks are whole."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.auditing.arithmetic import middle
from catalogs.auditing.book import Book, shown
from catalogs.auditing.cases import AuditedCase
from catalogs.auditing.reading import digest
from catalogs.auditing.shapes import (
    BATCH_SECONDS,
    GUARD_ELEMENTS,
    INPUT_SETS,
    KERNEL_RECORD,
    METRICS,
    RECORD_PLACE,
    SAMPLES,
    TORCH_RECORD,
)
from catalogs.canonical import canonical_json

_CLOCKS_AGREE_SECONDS = 1.0
_CLOCK_STEP_SECONDS = 1e-3
"""What reading a clock before or after an event may cost."""
_SHORTEST_BATCH, _LONGEST_BATCH = 0.01, 100.0
"""What a sample's calls may last, in the protocol's batches. Wide: on a busy machine the call that calibrates may be
interrupted for many times its own length (0.18 batches was seen), and that makes no evidence false."""
_FUTURE_DAYS = 1
"""How far the clock that stamped a record may be ahead of the auditor's."""


@dataclass(frozen=True, kw_only=True)
class AuditedRecord:
    """A record that says which one it is; ``whole``: its shape is right too."""

    name: str
    document: Mapping[str, Any]
    whole: bool

    @property
    def place(self) -> tuple[int, int, str]:
        """(round, case, arm)."""
        return self.document["round"], self.document["case"], self.document["arm"]

    @property
    def started(self) -> datetime.datetime:
        """Start by the wall clock; of a whole record."""
        return datetime.datetime.fromisoformat(self.document["started_at"])

    @property
    def finished(self) -> datetime.datetime:
        """End by the wall clock; of a whole record."""
        return datetime.datetime.fromisoformat(self.document["finished_at"])

    def value(self, metric: str) -> float:
        """The median of the raw samples; of a whole record."""
        return middle(self.document["timing"][metric]["samples_seconds"])


def read_records(documents: list[Any], book: Book) -> list[AuditedRecord]:
    """The records that say where they belong, in the bundle's order."""
    found = []
    for position, document in enumerate(documents):
        where = f"records[{position}]"
        if not book.fits(where, document, RECORD_PLACE):
            continue
        name = (
            f"{where} (round {document['round']}, case {document['case']}, arm {document['arm']}, "
            f"id {shown(document.get('id'))})"
        )
        whole = book.fits(name, document, TORCH_RECORD if document["arm"] == "T" else KERNEL_RECORD)
        found.append(AuditedRecord(name=name, document=document, whole=whole))
        book.checked["records"] += 1
    return found


def check_record(record: AuditedRecord, case: AuditedCase, scope: Mapping[str, Any] | None, book: Book) -> None:
    """Everything that a whole record says of itself, its arm and the scope."""
    document, name = record.document, record.name
    arm = case.arms[document["arm"]]
    if arm is not None and document["arm"] != "T":
        for field in ("source_sha256", "artifact_sha256", "plan", "candidate"):
            book.equal(name, field, document[field], arm[field], f"that of arm {document['arm']}")
    if scope is not None:
        toolchain, device = scope["toolchain_fingerprint"], scope["device"]["digest"]
        book.equal(name, "toolchain_fingerprint", document["toolchain_fingerprint"], toolchain, "the scope's")
        book.equal(name, "device_digest", document["device_digest"], device, "the scope's")
        for metric in METRICS:
            context = document["timing"][metric].get("cache_context", "warm")
            book.equal(name, f"timing.{metric}.cache_context", context, scope["cache_context"], "the scope's")
    _check_timing(record, book)
    _check_duration(record, book)
    _check_errors(record, book)
    _check_guards(record, case, book)
    names = [found["name"] for found in document["checks"]["inputs"]]
    if sorted(names) != sorted(INPUT_SETS):
        book.find(name, f"the input sets are {list(INPUT_SETS)}, once each; got {shown(names)}", field="checks.inputs")
    book.checked["correctness records"] += 1
    book.checked["elements checked, as recorded"] += sum(i["elements_checked"] for i in document["checks"]["inputs"])


_SAME_INPUTS = ("input_sha256", "elements_checked", "guard_elements_checked", "tolerance", "patterns")
"""Of an input set: what case, inputs and oracle decide, whatever kernel (or torch) was checked."""


def check_inputs(records: list[AuditedRecord], cases: Mapping[int, AuditedCase], book: Book) -> None:
    """That every record of a case was checked on the same inputs, over as many elements, by the same rule."""
    first: dict[tuple[int, str], tuple[AuditedRecord, Mapping[str, Any]]] = {}
    for record in records:
        case = record.document["case"]
        if not record.whole or case not in cases:
            continue
        for position, given in enumerate(record.document["checks"]["inputs"]):
            other, wanted = first.setdefault((case, given["name"]), (record, given))
            for field in _SAME_INPUTS:
                where = f"checks.inputs[{position}].{field}"
                book.equal(record.name, where, given.get(field), wanted.get(field), f"that of {other.name}")


def check_unique(records: list[AuditedRecord], book: Book) -> None:
    """That no id, no round × case × arm and no samples are there twice, and no process built for two rounds."""
    ids: dict[Any, AuditedRecord] = {}
    samples: dict[bytes, AuditedRecord] = {}
    places: dict[tuple[int, int, str], AuditedRecord] = {}
    builders: dict[str, AuditedRecord] = {}
    for record in records:
        if record.whole:
            # clocks count nanoseconds: eighteen equal figures are one measurement that was copied
            other = samples.setdefault(canonical_json(record.document["timing"]), record)
            if other is not record:
                book.find(record.name, f"exactly the samples of {other.name}: they were copied", field="timing")
            other = ids.setdefault(record.document["id"], record)
            if other is not record:
                book.find(record.name, f"the id of {other.name}: a record is there twice", field="id")
        other = places.setdefault(record.place, record)
        if other is not record:
            book.find(record.name, f"the round, case and arm of {other.name}: a record is there twice")
        process = record.document.get("build_process")
        if record.whole and process is not None:
            other = builders.setdefault(process, record)
            if other.document["round"] != record.document["round"]:
                book.find(
                    record.name,
                    f"{shown(process)} also built for {other.name}: every round builds anew",
                    field="build_process",
                )


def _check_guards(record: AuditedRecord, case: AuditedCase, book: Book) -> None:
    least = GUARD_ELEMENTS * len(case.document["dtypes"])  # one for each tensor
    for position, given in enumerate(record.document["checks"]["inputs"]):
        if given["guard_elements_checked"] < least:
            message = f"{given['guard_elements_checked']} are fewer than {GUARD_ELEMENTS} around each buffer, {least}"
            book.find(record.name, message, field=f"checks.inputs[{position}].guard_elements_checked")


def _check_timing(record: AuditedRecord, book: Book) -> None:
    timing = record.document["timing"]
    for metric in METRICS:
        samples = timing[metric]["samples_seconds"]
        book.checked["samples"] += len(samples)
        if len(samples) != SAMPLES:
            message = f"the protocol takes {SAMPLES} samples, got {len(samples)}: one was dropped or added"
            book.find(record.name, message, field=f"timing.{metric}.samples_seconds")
        median = timing[metric]["median_seconds"]
        book.equal(record.name, f"timing.{metric}.median_seconds", median, middle(samples), "the median of its samples")
        book.checked["medians recomputed"] += 1
        _check_batch(record, metric, book)
    if record.document["samples_sha256"] != digest(timing):
        book.find(record.name, "not the sha256 of the timing: a sample was edited", field="samples_sha256")


def _check_batch(record: AuditedRecord, metric: str, book: Book) -> None:
    """That so many calls are what the protocol takes together: a single call may last as long as it does."""
    calls = record.document["timing"][metric]["calls_per_sample"]
    batches = record.value(metric) * calls / BATCH_SECONDS
    if batches < _SHORTEST_BATCH or (calls > 1 and batches > _LONGEST_BATCH):
        message = f"{calls} calls last {batches:.3g} of the protocol's batches of {BATCH_SECONDS} s"
        book.find(record.name, message, field=f"timing.{metric}.calls_per_sample")


def _check_errors(record: AuditedRecord, book: Book) -> None:
    for position, given in enumerate(record.document["checks"]["inputs"]):
        error, tolerance = given["max_abs_error"], given.get("max_tolerance")
        if error is not None and tolerance is not None and error > tolerance:
            message = f"{shown(error)} is beyond the largest tolerance, {shown(tolerance)}, yet the checks have passed"
            book.find(record.name, message, field=f"checks.inputs[{position}].max_abs_error")


def _check_duration(record: AuditedRecord, book: Book) -> None:
    document = record.document
    by_wall = (record.finished - record.started).total_seconds()
    elapsed = document["finished_monotonic_seconds"] - document["started_monotonic_seconds"]
    if by_wall <= 0:
        book.find(record.name, f"not after started_at: {shown(document['finished_at'])}", field="finished_at")
    latest = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=_FUTURE_DAYS)
    for field, moment in (("started_at", record.started), ("finished_at", record.finished)):
        if moment > latest:
            book.find(record.name, f"{shown(document[field])} is yet to come", field=field)
    if elapsed <= 0:
        book.find(record.name, "not after started_monotonic_seconds", field="finished_monotonic_seconds")
    if abs(by_wall - elapsed) > _CLOCKS_AGREE_SECONDS:
        book.find(
            record.name, f"{by_wall:.3f} s by the wall clock, {elapsed:.3f} s by the monotonic", field="finished_at"
        )
    timing = document["timing"]
    sampled = sum(sum(timing[m]["samples_seconds"]) * timing[m]["calls_per_sample"] for m in METRICS)
    if sampled > elapsed + _CLOCK_STEP_SECONDS:
        message = f"{sampled:.3f} s of samples within {shown(elapsed)} s: samples, calls or clocks were edited"
        book.find(record.name, message, field="timing")

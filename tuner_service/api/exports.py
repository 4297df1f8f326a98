"""Whole-query exports of trials, streamed page by page, and a trial's source as a folder."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner_service.db.json_text import json_text, parsed

PAGE_TRIALS = 500
Fetch = Callable[[str | None, int], Mapping[str, Any]]
"""(cursor, limit) → one page of trials, whose records may be JsonText."""

CSV_COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("id",),
    "job_id": ("job_id",),
    "case_index": ("case_index",),
    "kernel": ("case", "kernel"),
    "params": ("case", "params"),
    "dims": ("case", "dims"),
    "dtypes": ("case", "dtypes"),
    "width": ("candidate", "width"),
    "input": ("candidate", "input"),
    "fusion": ("candidate", "fusion"),
    "materialize": ("candidate", "materialize"),
    "algorithm": ("candidate", "algorithm"),
    "vector": ("candidate", "vector"),
    "unroll": ("candidate", "unroll"),
    "partials": ("candidate", "partials"),
    "mapping": ("candidate", "mapping"),
    "in_space": ("in_space",),
    "is_default": ("is_default",),
    "outcome": ("outcome",),
    "stage": ("stage",),
    "reason": ("reason",),
    "private_scalars": ("plan", "private_scalars"),
    "allocated_scalars": ("plan", "allocated_scalars"),
    "score": ("plan", "score"),
    "device_batch_median_seconds": ("timing", "device_batch", "median_seconds"),
    "device_batch_samples_seconds": ("timing", "device_batch", "samples_seconds"),
    "same_code_as": ("same_code_as",),
    "overlapped": ("overlapped",),
    "checks_passed": ("checks", "passed"),
    "source_sha256": ("code", "source_sha256"),
    "artifact_sha256": ("code", "artifact_sha256"),
    "registers": ("code", "registers"),
    "spill_bytes": ("code", "spill_bytes"),
    "shared_bytes": ("code", "shared_bytes"),
    "stack_bytes": ("code", "stack_bytes"),
    "static_instructions": ("code", "static_instructions"),
    "attempt": ("attempt",),
    "created_at": ("created_at",),
    "finished_at": ("finished_at",),
}
"""Column → where it stands in a trial. Objects and lists are JSON in their cell; an empty cell is null."""


def jsonl(fetch: Fetch) -> Iterator[bytes]:
    """One trial a line, complete."""
    for trial in _all(fetch):
        yield json_text(trial).encode() + b"\n"


def csv_rows(fetch: Fetch) -> Iterator[bytes]:
    """A header line and one line a trial (RFC 4180)."""
    yield _csv_line(list(CSV_COLUMNS))
    for trial in map(parsed, _all(fetch)):
        yield _csv_line([_cell(trial, path) for path in CSV_COLUMNS.values()])


def _all(fetch: Fetch) -> Iterator[Mapping[str, Any]]:
    cursor: str | None = None
    while True:
        page = fetch(cursor, PAGE_TRIALS)
        yield from page["items"]
        cursor = page["next"]
        if cursor is None:
            return


def _csv_line(cells: list[str]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue().encode()


def _cell(trial: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = trial
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def source_files(source: Mapping[str, Any]) -> dict[str, str]:
    """The folder of a trial's source: plain file name → text."""
    files = {
        "kernel.tilelang.py": source["tilelang_text"],
        f"kernel.{'cu' if source['header_name'].endswith('.cuh') else 'c'}": source["c_text"],
        source["header_name"]: source["header_text"],
        **source["files"],
    }
    files["BUILD.txt"] = " ".join(source["build_command"]) + "\n"
    return {name: text for name, text in files.items() if _is_plain(name)}


def source_tar(source: Mapping[str, Any], *, folder: str) -> bytes:
    """The same folder as a tar file; equal sources give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, text in sorted(source_files(source).items()):
            data = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _is_plain(name: str) -> bool:
    return bool(name) and "/" not in name and "\\" not in name and name not in (".", "..") and "\0" not in name

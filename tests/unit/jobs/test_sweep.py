"""What leaves the shared artifact store: what is old, and named nowhere in the ledger."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from search.lowering.blobs import DirectoryBlobs
from tuner_service.db.engine import Database
from tuner_service.db.models import Trial
from tuner_service.jobs import sweep as sweeping
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.prune import PruneRequest, prune
from tuner_service.jobs.submit import submit
from tuner_service.jobs.sweep import sweep

DAY = 86_400.0


def library(number: int) -> str:
    return f"libraries/{number:064x}"


def source(number: int) -> str:
    return f"sources/{number:064x}"


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    (tmp_path / "shared").mkdir()
    return DirectoryBlobs(tmp_path / "shared")


def put_old(blobs: DirectoryBlobs, *names: str, days: float = 10) -> None:
    blobs.put(dict.fromkeys(names, b"x"))
    for name in names:
        os.utime(blobs.folder / name, (time.time() - days * DAY,) * 2)


def named_by_trials(database: Database) -> list[str]:
    """Sources, and the one library of the paper tools."""
    with database.read() as session:
        sources = session.scalars(select(Trial.source_sha256).where(Trial.source_sha256.is_not(None))).all()
    assert len(sources) > 2
    return [*(f"sources/{sha256}" for sha256 in sources), f"libraries/{'4' * 64}"]


def names(blobs: DirectoryBlobs) -> set[str]:
    return {str(path.relative_to(blobs.folder)) for path in blobs.folder.rglob("*/*") if path.is_file()}


@pytest.mark.databases("sqlite", "postgresql")
def test_only_what_is_old_and_named_nowhere_goes(
    database: Database,
    service: Any,
    resolve: Callable[..., Any],
    small: dict[str, Any],
    blobs: DirectoryBlobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeping, "TRIALS_AT_ONCE", 2)
    job_id = submit(database, resolve(small), idempotency_key=None, body_sha256="5" * 64)
    assert service.finish(job_id)["state"] == "succeeded"
    used = named_by_trials(database)
    texts = f"texts/{7:064x}"
    put_old(blobs, *used, texts, source(77), library(88), f"built/{1:064x}")
    put_old(blobs, source(78), library(89), f"built/{2:064x}", days=0.5)
    young = {source(78), library(89), f"built/{2:064x}"}
    assert sweep(database, blobs, seconds=20 * DAY) == 0
    assert sweep(database, blobs, seconds=0) == 3
    assert names(blobs) == {*used, texts, *young}
    # A catalog names what it was frozen from, in its own bytes, for as long as there are catalogs.
    freeze_jobs(database, FreezeRequest(jobs=(job_id,)))
    assert prune(database, PruneRequest(older_than_seconds=0), for_seconds=60)["kept_total"] == 1
    assert sweep(database, blobs, seconds=0) == 0


def test_what_only_pruned_jobs_named_goes_after_them(
    database: Database, service: Any, resolve: Callable[..., Any], small: dict[str, Any], blobs: DirectoryBlobs
) -> None:
    job_id = submit(database, resolve(small), idempotency_key=None, body_sha256="5" * 64)
    assert service.finish(job_id)["state"] == "succeeded"
    used = named_by_trials(database)
    put_old(blobs, *used)
    assert sweep(database, blobs, seconds=0) == 0
    assert prune(database, PruneRequest(older_than_seconds=0), for_seconds=60)["removed"]["jobs"] == 1
    assert sweep(database, blobs, seconds=0) == len(used)
    assert names(blobs) == set()


def test_what_is_put_while_the_ledger_is_read_stays(
    database: Database, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_old(blobs, library(5), library(6))
    read = sweeping._leave_out_referenced

    def somebody_builds_it(database: Database, old: dict[str, list[str]]) -> None:
        read(database, old)
        blobs.put({library(5): b"x"})

    monkeypatch.setattr(sweeping, "_leave_out_referenced", somebody_builds_it)
    assert sweep(database, blobs, seconds=0) == 1
    assert names(blobs) == {library(5)}

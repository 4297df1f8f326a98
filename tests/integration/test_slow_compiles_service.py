"""A job whose compiler runs for minutes: every candidate ends as a rejection with its reason, and so does the job."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from search.lowering import builder
from search.measuring.attach import attached_devices
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.db.queries.jobs import get_job
from tuner_service.db.queries.trials import list_trials
from tuner_service.jobs.request import Limits, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.workers.runtime import Runtime

pytestmark = pytest.mark.toolchain

PATIENCE_SECONDS = 300.0
"""Upper bound of a wait on a busy machine; nothing is concluded from how long anything took."""
CAP_SECONDS = 0.5
BODY = {
    "cases": [{"kernel": "row_sum", "dims": {"rows": 4, "cols": 40}}],
    "space": {"width": [8, 16], "simd_scope": ["none"], "nontemporal": [False]},
    "baselines": [],
}


def test_it_ends_as_rejections_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = attached_devices(tmp_path / "work")[0]
    compiler = tmp_path / "cc"
    # Asked for its version it answers; a batch of kernels it compiles for ever.
    compiler.write_text(f'#!/bin/sh\nif [ -f batch.c ]; then exec sleep 600; fi\nexec {shutil.which("gcc")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("TUNER_CC", str(compiler))
    monkeypatch.setattr(builder, "COMPILE_TIMEOUT_SECONDS", CAP_SECONDS)
    database = Database(f"sqlite:///{tmp_path / 'ledger.sqlite3'}")
    upgrade(database)
    runtime = Runtime(database=database, data_dir=tmp_path, probe=lambda work, known: [device])
    try:
        runtime.start()
        assert runtime.wait_probed(PATIENCE_SECONDS)
        resolved = resolve_request(BODY, devices=runtime.devices, limits=Limits())
        job_id = submit(database, resolved, idempotency_key=None, body_sha256="5" * 64)
        runtime.wake(job_id)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (job := _job(database, job_id))["state"] in ("queued", "running"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with database.read() as session:
            trials = list_trials(session, job_id, limit=100)["items"]
    finally:
        runtime.close()
        database.close()
    assert (job["state"], job["error"]) == ("succeeded", None)
    assert (job["progress"]["rejected"], job["progress"]["pending"]) == (2, 0)
    assert job["cases"][0]["winner"] is None
    assert len(trials) == 3, "the default beside the space"
    for trial in trials:
        assert (trial["outcome"], trial["stage"], trial["reason"]) == ("rejected", "compile", "compile_timeout")
        assert trial["detail"]["limit_seconds"] == CAP_SECONDS


def _job(database: Database, job_id: str) -> Any:
    with database.read() as session:
        return get_job(session, job_id)

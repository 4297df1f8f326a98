"""The embedded engine over a SQLite file, with compilers and a device on paper that answer at once: what is left is the
engine. ``python -m bench.paper_service FOLDER BODY`` does one job in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.million_trials import paper_desk
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.db.queries.jobs import get_job
from tuner_service.jobs.request import Limits, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.workers.runtime import Runtime


def paper_seconds(folder: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """``{"trials", "seconds"}`` of one job, from its entry to its end in the ledger."""
    words = [sys.executable, "-m", "bench.paper_service", str(folder), json.dumps(body)]
    told = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return dict(json.loads(told.stdout))


def _run(folder: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    folder.mkdir()
    paper = paper_desk()
    device = paper.paper_device()
    database = Database(f"sqlite:///{folder / 'ledger.sqlite3'}")
    upgrade(database)
    runtime = Runtime(
        database=database,
        data_dir=folder / "data",
        probe=lambda *_: [device],
        look=lambda names: [],
        tools=lambda _: paper.PaperTools(),
    )
    runtime.start()
    try:
        assert runtime.wait_probed(60.0)
        resolved = resolve_request(body, devices={device.id: device}, limits=Limits())
        job_id = submit(database, resolved, idempotency_key=None, body_sha256="0" * 64)
        runtime.wake(job_id)
        while (job := _job(database, job_id))["state"] in ("queued", "running"):
            time.sleep(0.2)
    finally:
        runtime.close()
        database.close()
    assert job["state"] == "succeeded", job["error"]
    begin, end = (datetime.fromisoformat(job[name]) for name in ("created_at", "finished_at"))
    return {"trials": job["progress"]["measured"], "seconds": (end - begin).total_seconds()}


def _job(database: Database, job_id: str) -> dict[str, Any]:
    with database.read() as session:
        return get_job(session, job_id)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_run(Path(sys.argv[1]), json.loads(sys.argv[2]))))

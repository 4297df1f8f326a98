"""Stores a database of the code in a checkout as a fixture: real rows, made by that code, as SQL text on stdout.

Run it once for a revision, in a checkout of the last commit that had it, before the next revision lands; keep what it
prints as ``fixtures/REVISION.sqlite.sql.gz`` and ``fixtures/REVISION.postgresql.sql.gz``::

    cd CHECKOUT && PYTHONPATH=. python …/store_old_database.py sqlite | gzip -9n > …/fixtures/0008.sqlite.sql.gz
"""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from postgres_cluster import PostgresCluster

JOBS = Path("tests/unit/jobs")
"""Where a checkout keeps its device on paper and what acts jobs and acceptances out."""


def module(path: Path) -> ModuleType:
    """A file of the checkout's tests."""
    sys.path.append(str(path.parent))
    name = f"acting_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def fill(url: str) -> None:
    """A finished job, a queued one with a key and a label, a cancelled one in the middle; from 0002 on, what the first
    one was frozen into, accepted and promoted."""
    from tuner_service.db.engine import Database
    from tuner_service.db.migrate import upgrade
    from tuner_service.jobs.ending import end_job
    from tuner_service.jobs.request import Limits, resolve_request
    from tuner_service.jobs.submit import submit

    acting = module(JOBS / "conftest.py")
    replaying = None
    with suppress(FileNotFoundError):
        replaying = module(JOBS / "test_acceptance.py")
    device = acting.paper_device()
    if replaying is not None:
        from catalogs import DeviceIdentity, sha256_hex

        identity = {"model": "paper"}
        device = acting.paper_device(
            identity_digest=DeviceIdentity(kind="cpu", identity=identity).digest,
            toolchain_fingerprint=sha256_hex(device.toolchain),
        )
    database = Database(url)
    upgrade(database)

    def post(key: str | None = None, **changes: Any) -> str:
        resolved = resolve_request({**acting.SMALL, **changes}, devices={device.id: device}, limits=Limits())
        return submit(database, resolved, idempotency_key=key, body_sha256="5" * 64)

    service = acting.Service(database, acting.PaperTools(), device)
    finished = post(labels={"team": "kernels"})
    assert service.finish(finished)["state"] == "succeeded"
    stopped = post()
    for _ in range(3):
        service.advancer.advance(stopped)
        service.run(next(iter(service.engine.tasks)))
    assert end_job(database, stopped, "cancelled")
    if replaying is not None:
        from tuner_service.jobs.acceptance import AcceptRequest, accept
        from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
        from tuner_service.jobs.promote import promote

        digest = freeze_jobs(database, FreezeRequest(jobs=(finished,)))["candidate"]["digest"]
        fresh = acting.Service(database, acting.PaperTools(), device)
        replays = replaying.Replays(fresh, replaying.PaperReplays())
        done = replays.finish(accept(database, digest, AcceptRequest(), devices=service.devices))
        assert done["verdict"] == "accepted"
        promote(database, "prod", digest)
    running = post()
    service.advancer.advance(running)
    post("a key", labels={"team": "models"})
    database.close()


def sqlite_text() -> str:
    """The dump of a SQLite file that was filled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite3"
        fill(f"sqlite:///{path}")
        connection = sqlite3.connect(path)
        text = "".join(f"{line}\n" for line in connection.iterdump())
        connection.close()
    return text


def postgresql_text() -> str:
    """The dump of a PostgreSQL database that was filled, without psql's own commands and session settings."""
    cluster = PostgresCluster()
    try:
        cluster.start()
        name = cluster.create()
        fill(f"postgresql+psycopg://postgres@127.0.0.1:{cluster.port}/{name}")
        options = ["--inserts", "--no-owner", "--no-privileges"]
        command = [cluster.program("pg_dump"), *options, f"--dbname={cluster.url(name)}"]
        dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        cluster.close()
    left_out = re.compile(r"^(\\.*|SET .*|SELECT pg_catalog\.set_config.*|--.*|)\n", re.MULTILINE)
    return left_out.sub("", dumped)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    print({"sqlite": sqlite_text, "postgresql": postgresql_text}[sys.argv[1]](), end="")

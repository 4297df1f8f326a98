"""The page about backups, walked through: a job runs meanwhile, and everything is there elsewhere afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from postgres_cluster import PostgresCluster

from tuner_service.cli.connect import await_ready
from tuner_service.cli.launch import PrivateService
from tuner_service.client import Client

pytestmark = pytest.mark.toolchain

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "backup-and-restore.md"
PATIENCE_SECONDS = 300.0
SMALL: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 4, "cols": 33}}],
    "device": "cpu",
    "space": {"width": [8], "input": ["reload"], "simd_scope": ["none"], "nontemporal": [False]},
    "baselines": [],
}
LARGER = {**SMALL, "space": {**SMALL["space"], "width": [8, 16], "input": ["reload", "cache"]}}


def commands(heading: str) -> list[str]:
    """The page's ``sh`` and ``console`` blocks below a heading, in order."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```(?:sh|console)\n(.*?)```", section, re.DOTALL)


def shell(script: str, folder: Path, **variables: str) -> str:
    folders = [str(Path(sys.executable).parent), variables.get("POSTGRES_PROGRAMS"), os.environ["PATH"]]
    environment = {**os.environ, **variables, "PATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run(["sh", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def served(data: Path) -> Iterator[Client]:
    with PrivateService(data) as service, Client(service.url) as client:
        await_ready(client)
        yield client


def frozen_things(client: Client, job_id: str, digest: str) -> dict[str, Any]:
    """What must be the same after a restore, every byte of it."""
    catalog = client.catalog(digest)
    reference = client.catalogs(role="reference")[0]["digest"]
    entries = [*catalog["entries"], *client.catalog(reference)["entries"]]
    libraries = {entry["artifact"]["library_sha256"] for entry in entries}
    for sha256 in libraries:
        data = httpx.get(f"{client.url}/v1/artifacts/{sha256}", trust_env=False).raise_for_status().content
        assert hashlib.sha256(data).hexdigest() == sha256
    sources = [client.source(entry["trial_id"]) for entry in entries]
    winner = client.winner(kernel="softmax", dims={"rows": 4, "cols": 33})
    trials = list(client.trials(job_id))
    catalogs = client.catalogs()
    return {"catalogs": catalogs, "catalog": catalog, "sources": sources, "winner": winner, "trials": trials}


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.full), "postgresql"])
def test_a_backup_of_a_running_service_restores_whole(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TUNER_URL", "TUNER_DATABASE_URL", "TUNER_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    variables: dict[str, str] = {}
    if kind == "postgresql":
        cluster: PostgresCluster = request.getfixturevalue("postgres")
        variables = {
            "TUNER_DATABASE_URL": str(request.getfixturevalue("postgres_url")),
            "SERVER_URL": cluster.url(),
            "RESTORED_URL": cluster.url("tuner_restored"),
            "POSTGRES_PROGRAMS": str(cluster.program("pg_dump").parent),
        }
        monkeypatch.setenv("TUNER_DATABASE_URL", variables["TUNER_DATABASE_URL"])
        monkeypatch.setenv("TUNER_ARTIFACTS", "database")
        request.addfinalizer(lambda: cluster.drop("tuner_restored"))
    here, work = tmp_path / "here", tmp_path / "work"
    work.mkdir()
    backup, restore = commands("SQLite" if kind == "sqlite" else "PostgreSQL")
    with served(here) as client:
        done = client.wait(client.submit(SMALL)["id"], poll_seconds=0.1)
        assert done["state"] == "succeeded", done
        digest = client.freeze([done["id"]])["candidate"]["digest"]
        before = frozen_things(client, done["id"], digest)
        running = client.submit(LARGER)["id"]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while client.job(running)["state"] == "queued":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        shell(backup, work, TUNER_DATA_DIR=str(here), **variables)
        client.cancel(running)
    said = shell(restore, work, TUNER_DATA_DIR=str(here), **variables)
    assert "ready" in said or "at this version's revision" in said
    if kind == "postgresql":
        monkeypatch.setenv("TUNER_DATABASE_URL", variables["RESTORED_URL"])
        there = tmp_path / "there"
    else:
        assert {job["id"] for job in json.loads((work / "jobs.json").read_text())["items"]} == {done["id"], running}
        there = work / "restored"
    with served(there) as client:
        assert frozen_things(client, done["id"], digest) == before
        job = client.wait(running, poll_seconds=0.1)
        assert job["state"] == "succeeded", job
        counts = job["progress"]
        assert counts["enumerated"] == counts["measured"] + counts["rejected"]
        assert job["cases"][0]["winner"] is not None

"""``serve`` as a process: its one line, its files, a clean stop, and what it never imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tuner_service.api import schemas

SERVE = """
import json, sys
from pathlib import Path
from tuner_service.app import serve
from tuner_service.settings import Settings
serve(Settings(port=0, data_dir=Path(sys.argv[1])))
Path(sys.argv[2]).write_text(json.dumps(sorted(sys.modules)))
"""
FORBIDDEN = {"torch", "tilelang", "tvm", "numpy"}
TINY: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}],
    "device": "cpu",
    "space": {
        "width": [8],
        "input": ["reload"],
        "materialize": ["output"],
        "simd_scope": ["all"],
        "nontemporal": [False],
    },
    "baselines": [],
}


class Process:
    """A service process and a client of it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir, self.modules_file = data_dir, data_dir / "modules.json"
        with (data_dir / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(data_dir), str(self.modules_file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.removeprefix("listening on ").strip()
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One service for all: the last test stops it."""
    started = Process(tmp_path_factory.mktemp("data"))
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()
        started.http.close()
        if started.process.stdout is not None:
            started.process.stdout.close()


def test_serve_says_where_it_listens(service: Process) -> None:
    assert service.line.startswith("listening on http://127.0.0.1:"), (service.data_dir / "log").read_text()
    assert service.http.get("/readyz").status_code == 200
    known = json.loads((service.data_dir / "service.json").read_text())
    database = str(service.data_dir / "tuner.sqlite3")
    assert known == {"url": service.url, "pid": service.process.pid, "database": database}
    for path in ("/healthz", "/docs", "/openapi.json", "/v1/kernels", "/v1/devices", "/v1/jobs", "/problems"):
        assert service.http.get(path).status_code == 200, path
    assert service.http.post("/v1/plans", json=TINY).status_code == 200
    lookup = service.http.get("/v1/winners", params={"kernel": "softmax", "dims": "rows:8,cols:33"})
    assert lookup.status_code == 404


def test_a_second_service_on_the_same_data_is_refused_with_the_pid(service: Process) -> None:
    assert service.url
    second = subprocess.run(
        [sys.executable, "-c", SERVE, str(service.data_dir), os.devnull],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
    assert second.stdout == ""
    assert f"in use by the service with pid {service.process.pid}" in second.stderr
    assert service.http.get("/readyz").status_code == 200
    assert json.loads((service.data_dir / "service.json").read_text())["pid"] == service.process.pid


@pytest.mark.toolchain
def test_a_job_runs_over_http_to_a_winner_that_can_be_looked_up(service: Process) -> None:
    job_id = service.http.post("/v1/jobs", json=TINY).json()["id"]
    kinds = []
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events", timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
    assert kinds[-1] == "end"
    job = service.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["error"]) == ("succeeded", None)
    schemas.JobDocument.model_validate(job)
    progress = job["progress"]
    assert progress["enumerated"] == progress["measured"] + progress["rejected"] > 0
    winner = job["cases"][0]["winner"]
    assert winner["checks"]["passed"]
    source = service.http.get(f"/v1/trials/{winner['id']}/source").json()
    assert "tilelang" in source["tilelang_text"]
    assert source["source_sha256"] == winner["code"]["source_sha256"]
    entry = service.http.get("/v1/winners", params={"kernel": "softmax", "dims": "rows:8,cols:33"}).json()
    assert (entry["job_id"], entry["trial_id"]) == (job_id, winner["id"])
    assert entry["candidate"] == winner["candidate"]
    schemas.EntryDocument.model_validate(entry)


def test_it_stops_cleanly_whoever_follows_a_job(service: Process) -> None:
    created = service.http.post("/v1/jobs", json=TINY)
    assert created.status_code == 202, created.text
    with service.http.stream("GET", created.headers["location"] + "/events") as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines).startswith("retry")
        service.process.send_signal(signal.SIGTERM)
        for _ in lines:
            pass
    assert service.process.wait(timeout=60) == 0
    assert service.process.stdout is not None
    assert service.process.stdout.read() == "", "only one line may be printed"
    assert not (service.data_dir / "service.json").exists()
    assert not FORBIDDEN & set(json.loads(service.modules_file.read_text()))
    for line in (service.data_dir / "log").read_text().splitlines():
        assert json.loads(line)["level"] in ("INFO", "WARNING"), line

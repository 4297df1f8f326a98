"""Real file systems of a few megabytes, filled to the last byte under real services: jobs say so, nothing that was
recorded is lost, and work goes on when there is room again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

PATIENCE_SECONDS = 120.0
DISK_MIB = 24
BODY: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}],
    "device": "cpu",
    "space": {"width": [8, 16], "input": ["reload", "cache"], "simd_scope": ["all"], "nontemporal": [False]},
    "private_budget_scalars": 8,
    "baselines": [],
}


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_a_mount_namespace() -> list[str]:
    """The words before a command that may mount file systems nobody else sees."""
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    try:
        tried = subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if tried.returncode:
        pytest.skip(f"no file system may be mounted here: {tried.stderr.strip()}")
    return words


class Disk:
    """A file system of a process's own, as the process sees it."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.inside = Path(f"/proc/{pid}/root{folder}")
        self._filler = self.inside / "filler"

    def fill(self) -> None:
        """Take every byte that is left."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (1 << 16, 1):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError as error:
                    assert error.strerror == "No space left on device"  # noqa: PT017 - anything else is a broken test

    def clear(self) -> None:
        """Give it back."""
        self._filler.unlink()


class OnSmallDisks:
    """A ``tuner`` command whose data (with its log and temporary files) and whose database lie on small disks."""

    def __init__(self, folder: Path, words: list[str], **environment: str) -> None:
        data, database = folder / "data", folder / "database"
        mounts = [f"mkdir -p {shlex.quote(str(one))} && mount -t tmpfs -o size={DISK_MIB}m none {shlex.quote(str(one))}"
                  for one in (data, database)]  # fmt: skip
        quoted = shlex.quote(str(data))
        script = " && ".join([*mounts, f"mkdir {quoted}/tmp", f'exec "$@" 2>>{quoted}/log'])
        self.process = subprocess.Popen(
            [*in_a_mount_namespace(), "sh", "-c", script, "sh", sys.executable, "-m", "tuner_service.cli", *words],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "TUNER_DATA_DIR": str(data),
                "TUNER_DATABASE_URL": f"sqlite:///{database}/tuner.sqlite3",
                "TUNER_COMPILE_ONLY_DEVICES": "none",
                "TUNER_ADVANCE_PERIOD_SECONDS": "0.5",
                "TUNER_LOCK_DIR": str(folder / "locks"),
                "TMPDIR": str(data / "tmp"),
                **environment,
            },
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.data, self.database = Disk(self.process.pid, data), Disk(self.process.pid, database)

    def close(self) -> int:
        """End it; its exit status."""
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., OnSmallDisks]]:
    """``start(name, words, **environment)``: such a process, which must end well when the test has ended."""
    started: list[OnSmallDisks] = []

    def one(name: str, words: list[str], **environment: str) -> OnSmallDisks:
        started.append(OnSmallDisks(tmp_path / name, words, **environment))
        return started[-1]

    yield one
    assert [process.close() for process in reversed(started)] == [0] * len(started)


class Jobs:
    """What an API says of them."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS)

    def submit(self) -> str:
        answer = self.http.post("/v1/jobs", json=BODY)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def get(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, "reading needs no room"
        document: dict[str, Any] = answer.json()
        return document

    def ended(self, job_id: str) -> dict[str, Any]:
        wait(lambda: self.get(job_id)["state"] in ("failed", "succeeded"))
        job = self.get(job_id)
        counted = job["progress"]
        assert counted["enumerated"] == sum(count for name, count in counted.items() if name != "enumerated")
        return job

    def measured(self, job_id: str) -> dict[str, Any]:
        trials = self.http.get(f"/v1/jobs/{job_id}/trials", params={"limit": 100}).json()["items"]
        return {trial["id"]: trial for trial in trials if trial["outcome"] == "measured"}


@pytest.mark.toolchain
def test_full_disks_under_a_service(start: Callable[..., OnSmallDisks]) -> None:
    service = start("service", ["serve", "--port", "0"])
    jobs = Jobs(service.said.removeprefix("listening on ").strip())
    with jobs.http as http:
        wait(lambda: http.get("/readyz").json()["devices"] == "probed")

        service.data.fill()  # artifacts, the work directory, temporary files and the log
        failed = jobs.ended(jobs.submit())
        assert (failed["state"], failed["progress"]["measured"]) == ("failed", 0)
        assert "no space left on disk" in failed["error"]
        service.data.clear()

        job_id = jobs.submit()
        wait(lambda: len(jobs.measured(job_id)) >= 1)
        service.database.fill()
        # A small write may still fit, now and then, and then it waits for nothing.
        wait(lambda: "no space left for the database" in (jobs.get(job_id)["waiting"] or ""))
        recorded = jobs.measured(job_id)
        refused = http.post("/v1/jobs", json=BODY)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/storage-unavailable")
        assert "no space left for the database" in refused.json()["detail"]
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, "full")
        service.database.clear()

        wait(lambda: jobs.get(job_id)["progress"]["pending"] == 0)
        after = jobs.measured(job_id)
        assert len(after) > len(recorded)
        assert {id_: after[id_] for id_ in recorded} == recorded
        assert jobs.get(job_id)["waiting"] is None
        assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200, "finals would say no more"


@pytest.mark.full
@pytest.mark.toolchain
def test_a_full_disk_under_a_worker(postgres_url: str, start: Callable[..., OnSmallDisks]) -> None:
    """Of three processes only the worker's disk is full. Its job waits, is charged nothing, and goes on by itself."""
    shared = {"TUNER_ENGINE": "postgres", "TUNER_DATABASE_URL": postgres_url}
    api = start("api", ["serve", "--port", "0"], **shared)
    worker = start("worker", ["worker", "--device", "cpu"], **shared)
    jobs = Jobs(api.said.removeprefix("listening on ").strip())
    with jobs.http as http:
        wait(lambda: bool(http.get("/v1/devices").json()["items"]))
        worker.data.fill()
        job_id = jobs.submit()
        wait(lambda: "has no space left on its disk" in str(jobs.get(job_id)["waiting"]))
        assert http.get("/readyz").json()["database"] == "ok"
        wait(lambda: 'tuner_workers{state="full"} 1.0' in http.get("/metrics").text)
        assert jobs.get(job_id)["progress"]["measured"] == 0
        worker.data.clear()
        job = jobs.ended(job_id)
        assert (job["state"], job["error"]) == ("succeeded", None)
        trials = http.get(f"/v1/jobs/{job_id}/trials", params={"limit": 100}).json()["items"]
        assert {trial["stage"] for trial in trials} <= {None, "constraints"}, "nobody was charged"
        log = (worker.data.inside / "log").read_text()
        assert "this worker takes no task until there is room" in log

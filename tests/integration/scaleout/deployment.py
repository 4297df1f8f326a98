"""A scaled-out service of real processes: PostgreSQL, ``tuner serve``, ``tuner worker``, and what the ledger says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from process_tree import alive, descendants
from sqlalchemy import text

from tuner_service.client import Client
from tuner_service.db.engine import Database
from tuner_service.db.queries.cases import case_events
from tuner_service.db.queries.jobs import get_job, list_job_events
from tuner_service.db.queries.trials import list_trials

PATIENCE_SECONDS = 240.0
"""Upper bound of a wait on a busy machine; nothing is concluded from how long anything took."""
TUNER = ["-m", "tuner_service.cli"]
PAPER_WORKER = str(Path(__file__).with_name("paper_worker.py"))
PAPER_DEVICE, ANOTHER_DEVICE = "cpu:000000000000", "cpu:222222222222"
SMALL: dict[str, Any] = {
    "cases": [{"kernel": "softmax", "dims": {"rows": 17, "cols": 65}}],
    "device": "cpu",
    "space": {"width": [8, 16], "input": ["reload", "cache"], "simd_scope": ["all"], "nontemporal": [False]},
    "private_budget_scalars": 12,
    "baselines": [],
}
"""A job of a few candidates, one of them over the budget."""


class Process:
    """One of ours. ``said`` is what it printed on stdout so far; ``log`` its JSON lines."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
        self.name, self.log_path = name, folder / f"{name}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def messages(self) -> list[str]:
        """What it logged, without the members around it."""
        return [json.loads(line)["message"] for line in self.log.splitlines() if line.startswith("{")]

    def await_line(self, beginning: str) -> str:
        """The first line on stdout that begins so."""
        wait(
            lambda: any(line.startswith(beginning) for line in self.said) or self.process.poll() is not None,
            lambda: self.log,
        )
        lines = [line for line in self.said if line.startswith(beginning)]
        assert lines, f"{self.name} ended with {self.process.poll()}: {self.said} {self.log}"
        return lines[0]

    def await_message(self, words: str) -> None:
        """Waits until it logged these words."""
        wait(lambda: any(words in message for message in self.messages), lambda: self.log)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ends it and waits for it and every process below it; its exit status."""
        below = descendants(self.pid)
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        wait(lambda: not any(map(alive, below)), lambda: f"{self.name} left {list(filter(alive, below))}")
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.said.extend(line.rstrip("\n") for line in lines)


class Deployment:
    """Processes on one database. ``close`` ends them all and fails when something of theirs is left."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.database = Database(url)
        self.processes: list[Process] = []
        self._began = time.monotonic()
        self._clients: list[Client] = []
        self.environment = {
            "TUNER_ENGINE": "postgres",
            "TUNER_DATABASE_URL": url,
            "TUNER_DATA_DIR": str(folder / "data"),
            "TUNER_LOCK_DIR": str(folder / "locks"),
            "TUNER_ADVANCE_PERIOD_SECONDS": "0.5",
            "TUNER_WORKER_LOST_SECONDS": "5",
            "TUNER_DRAIN_SECONDS": "20",
            "TUNER_COMPILE_ONLY_DEVICES": "none",
        }

    def serve(self, **environment: str) -> Client:
        """An API process that listens, and a client of it."""
        number = len(self.processes)
        own = {"TUNER_DATA_DIR": str(self.folder / f"api-{number}")}
        process = self._start(f"api-{number}", [*TUNER, "serve", "--port", "0"], {**own, **environment})
        url = process.await_line("listening on ").removeprefix("listening on ")
        self._clients.append(Client(url))
        return self._clients[-1]

    def worker(self, *arguments: str, ready: bool = True, **environment: str) -> Process:
        """A worker process, which has said that it is ready unless told otherwise."""
        process = self._start(f"worker-{len(self.processes)}", [*TUNER, "worker", *arguments], environment)
        if ready:
            process.await_line("worker ")
        return process

    def paper_worker(self, *, device: str = PAPER_DEVICE, url: str | None = None, **config: Any) -> Process:
        """A worker process with a device on paper; see ``paper_worker.py``. ``url``: its way to the database."""
        document = json.dumps({"folder": str(self.folder), "device": device, "began": self._began, **config})
        process = self._start(
            f"paper-{len(self.processes)}", [PAPER_WORKER, document], {"TUNER_DATABASE_URL": url or self.url}
        )
        process.await_line("worker ")
        return process

    def await_device(self, client: Client, device_id: str = PAPER_DEVICE) -> None:
        """Waits until a worker offers the device."""
        self.wait(lambda: any(d["id"] == device_id and d["available"] for d in client.devices()))

    def hold(self, step: str) -> None:
        """From now on workers on paper wait in this step."""
        (self.folder / f"hold-{step}").touch()

    def await_held(self, step: str) -> None:
        """Waits until one of them does."""
        self.wait((self.folder / f"held-{step}").exists)

    def let_go(self, step: str) -> None:
        """The step goes on."""
        (self.folder / f"hold-{step}").unlink()

    def close(self) -> None:
        """Kills whatever runs, with every process below it."""
        for client in self._clients:
            client.close()
        for process in self.processes:
            process.end(signal.SIGKILL)
        self.database.close()

    def losses(self, job_id: str) -> int:
        """How often a task on a trial of the job was lost, of the trial with most of that."""
        with self.database.read() as session:
            return int(session.scalar(text("SELECT max(losses) FROM trials WHERE job_id = :id"), {"id": job_id}) or 0)

    def jobs_by_state(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with self.database.read() as session:
            rows = session.execute(text("SELECT state, count(*) AS jobs FROM jobs GROUP BY state"))
            return {row.state: row.jobs for row in rows}

    def job(self, job_id: str) -> dict[str, Any]:
        with self.database.read() as session:
            return get_job(session, job_id)

    def trials(self, job_id: str) -> list[dict[str, Any]]:
        with self.database.read() as session:
            return list(list_trials(session, job_id, limit=1000)["items"])

    def events(self, job_id: str) -> list[dict[str, Any]]:
        with self.database.read() as session:
            return list_job_events(session, job_id, limit=100_000)

    def await_events(self, job_id: str, count: int) -> None:
        """Waits until the job's feed has so many events."""
        self.wait(lambda: len(self.events(job_id)) >= count)

    def await_end(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended."""
        self.wait(lambda: self.job(job_id)["state"] not in ("queued", "running"))
        return self.job(job_id)

    def wait(self, condition: Callable[[], bool]) -> None:
        wait(condition, lambda: "\n".join(f"--- {one.name}\n{one.log[-3000:]}" for one in self.processes))

    def assert_sound(self, job_id: str) -> None:
        """Every candidate has one end, no trial was recorded twice, and nothing is left in flight."""
        job = self.job(job_id)
        progress = job["progress"]
        ended = sum(progress[word] for word in ("measured", "rejected", "not_run", "checked"))
        assert progress["enumerated"] == ended + progress["pending"]
        assert progress["pending"] == 0 or job["state"] in ("queued", "running")
        ends = Counter(
            (event["data"]["trial_id"], event["data"]["event"])
            for event in self.events(job_id)
            if event["kind"] == "trial" and event["data"]["event"] in ("trial_measured", "trial_rejected")
        )
        assert set(ends.values()) <= {1}, ends
        with self.database.read() as session:
            told = case_events(session, [case["id"] for case in job["cases"]])
            claims = session.scalar(text("SELECT count(*) FROM claims WHERE job_id = :id"), {"id": job_id})
        names = Counter(
            json.dumps([e["event"], e.get("sequence"), e.get("trial"), e.get("phases_only")])
            for events in told.values()
            for e in events
        )
        assert not names or max(names.values()) == 1, names
        if job["state"] not in ("queued", "running"):
            self.wait(lambda: not self.in_flight(job_id))
            assert claims == 0

    def in_flight(self, job_id: str) -> int:
        """Tasks of a job or an acceptance that are in the queue, or run."""
        with self.database.read() as session:
            query = text("SELECT count(*) FROM procrastinate_jobs WHERE args->>'job_id' = :id")
            return int(session.scalar(query, {"id": job_id}) or 0)

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> Process:
        process = Process(name, arguments, {**self.environment, **environment}, self.folder)
        self.processes.append(process)
        return process


def wait(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    """Waits for a condition; what is ``told`` explains why it never came."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)

"""A service as an operator starts it, in real processes, and the CPU time that each of its parts has taken."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "integration" / "scaleout")]

from deployment import PAPER_DEVICE, PAPER_WORKER, TUNER, Process  # noqa: E402
from postgres_cluster import PostgresCluster  # noqa: E402
from process_tree import descendants, stat_of  # noqa: E402

from tuner_service.client import Client  # noqa: E402
from tuner_service.db.engine import Database  # noqa: E402
from tuner_service.db.migrate import upgrade  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
WORKERS: tuple[tuple[str, ...], ...] = (
    ("--device", "cpu", "--compile-slots", "0"),
    ("--compile-only", "--compile-slots", "1"),
    ("--compile-only", "--compile-slots", "1"),
)
"""Three on one host: one has the device and leaves compiling to the others, each of which has one slot."""
_COMMON = {"TUNER_COMPILE_ONLY_DEVICES": "none", "TUNER_DRAIN_SECONDS": "0"}
"""Devices that are timed alone; and an end that waits for no task."""
PARTS = ("service", "workers", "database", "children")


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """CPU seconds since the start: of ``tuner serve``, of the workers, of PostgreSQL, and of all children, which
    compile and measure."""

    service: float
    workers: float
    database: float
    children: float

    def since(self, before: Cpu) -> Cpu:
        """What came after ``before``."""
        return Cpu(**{part: getattr(self, part) - getattr(before, part) for part in PARTS})


class Services:
    """The processes of one engine, and a client of their API."""

    def __init__(self, engine: str, cluster: PostgresCluster | None = None) -> None:
        self.engine, self.cluster = engine, cluster
        self.service: Process
        self.workers: list[Process] = []
        self.client: Client

    def cpu(self) -> Cpu:
        """As of now."""
        own = {one.pid: own_seconds(one.pid) for one in (self.service, *self.workers)}
        whole = {pid: tree_seconds(pid) for pid in own}
        assert self.cluster is None or self.cluster.pid is not None
        return Cpu(
            service=own[self.service.pid],
            workers=sum(own[worker.pid] for worker in self.workers),
            database=0.0 if self.cluster is None else tree_seconds(self.cluster.pid),
            children=sum(whole.values()) - sum(own.values()),
        )

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """What every process logged so far."""
        for one in (self.service, *self.workers):
            yield from (json.loads(line) for line in one.log.splitlines() if line.startswith("{"))


@contextmanager
def embedded(folder: Path) -> Iterator[Services]:
    """``tuner serve`` with its defaults: SQLite in its data directory, everything in one process and its children."""
    folder.mkdir()
    services = Services("embedded")
    with _ended(services):
        places = {"TUNER_DATA_DIR": str(folder / "data"), "TUNER_LOCK_DIR": str(folder / "locks")}
        _serve(services, {**_COMMON, **places}, folder)
        yield services


@contextmanager
def scaled_out(folder: Path, cluster: PostgresCluster, *, paper: bool = False) -> Iterator[Services]:
    """``tuner serve`` and three workers of this host on an empty database of the cluster.

    ``paper``: one worker whose compilers and device exist on paper and answer at once, with one compile slot.
    """
    folder.mkdir()
    url = cluster.url(cluster.create())
    database = Database(url)
    upgrade(database)
    database.close()
    services = Services("postgres", cluster)
    environment = {
        **_COMMON,
        "TUNER_ENGINE": "postgres",
        "TUNER_DATABASE_URL": url,
        "TUNER_LOCK_DIR": str(folder / "locks"),
    }
    with _ended(services):
        _serve(services, {**environment, "TUNER_DATA_DIR": str(folder / "service")}, folder)
        environment["TUNER_DATA_DIR"] = str(folder / "host")
        document = json.dumps({"folder": str(folder), "device": PAPER_DEVICE, "began": time.monotonic()})
        commands = [[PAPER_WORKER, document]] if paper else [[*TUNER, "worker", *words] for words in WORKERS]
        for number, command in enumerate(commands):
            services.workers.append(Process(f"worker-{number}", command, environment, folder))
        for worker in services.workers:
            worker.await_line("worker ")
        yield services


def _serve(services: Services, environment: dict[str, str], folder: Path) -> None:
    services.service = Process("serve", [*TUNER, "serve", "--port", "0"], environment, folder)
    services.client = Client(services.service.await_line("listening on ").removeprefix("listening on "))


@contextmanager
def _ended(services: Services) -> Iterator[None]:
    """Whatever was started in the block ends with it."""
    try:
        yield
    finally:
        if hasattr(services, "client"):
            services.client.close()
        for one in (*services.workers, *([services.service] if hasattr(services, "service") else [])):
            one.end()


def own_seconds(pid: int) -> float:
    """CPU seconds of a process itself."""
    return _seconds(pid, 11, 12)


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process, of those below it, and of those that they have waited for."""
    return sum(_seconds(one, 11, 12, 13, 14) for one in (pid, *(below for below, _ in descendants(pid))))


def _seconds(pid: int, *fields: int) -> float:
    """The sum of these fields of /proc/PID/stat; nothing for a process that is gone."""
    stat = stat_of(pid)
    return 0.0 if stat is None else sum(int(stat[field]) for field in fields) / TICKS

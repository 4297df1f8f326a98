"""The service on a PostgreSQL that holds a million trials: every list page, the job page, writing, and the plans.

    python bench/database.py                     a million trials, over HTTP; about ten minutes
    python bench/database.py --trials 50000      less
    python bench/database.py --plans             also the plan of every statement that a page ran
    python bench/database.py --json

A real service answers real requests of a job with one case and of one with 64. For every order that the API offers,
alone and with every filter: the first page of 100 trials, and one from the middle, reached by its cursor. Wall time,
JSON and HTTP included; the 95th percentile over all of them, and the worst. Then the job page (also of the same job in
a SQLite), the page of one case, the list of jobs with every filter where 50 jobs of 64 cases are the newest, a whole
export, and how fast the product's own code opened and recorded. Every SELECT that a page ran is explained, and one that
reads a whole table is an error: exit status 1, as for a missed number.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from sqlalchemy import event  # noqa: E402

from bench.million_trials import KERNELS, Population, copied_job, populate, server, unit_tests  # noqa: E402
from tuner_service.db.engine import Database  # noqa: E402
from tuner_service.settings import load_settings  # noqa: E402

LIMITS = {
    "list_p95_seconds": 0.050,
    "jobs_p95_seconds": 0.050,
    "job_seconds": 0.100,
    "sqlite_job_seconds": 0.100,
    "opened_per_second": 1000.0,
}
"""Issue 6's numbers: pages of trials and of jobs at most, the job page at most, trials inserted at least."""
JOB_FILTERS: tuple[Mapping[str, Any], ...] = (
    {},
    *({"kernel": kernel} for kernel in (*KERNELS, "no_such_kernel")),
    *({"state": state} for state in ("queued", "running", "succeeded", "failed", "cancelled")),
    {"device": "cpu"},
    {"device": "cpu:000000000000"},
    {"label": "team"},
    {"label": "team=bench"},
    {"label": "kernel=softmax"},
    {"label": "team=none"},
    {"state": "succeeded", "kernel": "softmax", "device": "cpu", "label": "team=bench"},
)
SORTS = ("ordinal", "median_seconds", "private_scalars", "width", "score", "registers", "spill_bytes", "finished_at")
FILTERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"outcome": "measured"},
    {"outcome": "rejected"},
    {"outcome": "not_run"},
    {"stage": "constraints"},
    {"reason": "private_budget"},
    {"kernel": "softmax"},
    {"case_index": 0},
    {"width": 16},
    {"input": "reload"},
    {"is_default": True},
    {"in_space": False},
    {"max_registers": 64},
    {"spills": True},
    {"outcome": "measured", "kernel": "rms_norm", "width": 32},
)
REPEATS = 3


def main() -> int:
    """Prints what was measured; 1 when a number is missed or a whole table was read."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trials", type=int, default=1_000_000)
    options.add_argument("--plans", action="store_true", help="print the plan of every statement")
    options.add_argument("--json", action="store_true")
    options.add_argument("--directory", type=Path, help="where the database lies (default: the temporary directory)")
    options.add_argument("--hush", type=Path, metavar="FILE", help="a file that stands while pages are timed")
    asked = options.parse_args()
    with server(asked.directory) as cluster:
        database = Database(cluster.url(cluster.create()))
        began = time.perf_counter()
        population = populate(database, asked.trials)
        _say(asked, f"{population.trials:,} trials after {time.perf_counter() - began:.0f} s")
        seen: dict[str, Any] = {}
        with _hushed(asked.hush), _served(database, seen) as http:
            found = measured(http, population)
            found["sqlite_job_seconds"] = sqlite_job(database, population.large_job)
        scans, plans = explained(database, seen)
        database.close()
    found |= {
        "trials": population.trials,
        "opened_per_second": population.rates.opened_per_second,
        "recorded_per_second": population.rates.recorded_per_second,
        "statements": len(seen),
        "sequential_scans": scans,
    }
    missed = [name for name, limit in LIMITS.items() if (found[name] < limit) == (name == "opened_per_second")]
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if asked.json else _table(found))
    if asked.plans:
        sys.stdout.write("\n\n".join(plans) + "\n")
    for name in missed:
        sys.stderr.write(f"missed: {name} is {found[name]:.3g}, the limit is {LIMITS[name]:g}\n")
    for scan in scans:
        sys.stderr.write(f"reads a whole table: {scan}\n")
    return 1 if missed or scans else 0


def measured(http: Any, population: Population) -> dict[str, Any]:
    """Seconds of pages; the slowest requests by name."""
    pages: dict[str, float] = {}
    for job in (population.small_job, population.large_job):
        size = "large" if job == population.large_job else "small"
        for sort in (direction + word for word in SORTS for direction in ("", "-")):
            for chosen in FILTERS:
                name = f"{size} job, sort={sort} {dict(chosen) or ''}"
                query = {"sort": sort, "limit": 100, **chosen}
                first, seconds = _timed(http, f"/v1/jobs/{job}/trials", query)
                pages[name] = seconds
                middle = _middle(http, job, query, first)
                if middle is not None:
                    pages[f"{name}, from the middle"] = _timed(http, f"/v1/jobs/{job}/trials", middle)[1]
    jobs: dict[str, float] = {}
    for chosen in JOB_FILTERS:
        first, jobs[f"jobs {dict(chosen)}"] = _timed(http, "/v1/jobs", chosen)
        if first["next"]:
            jobs[f"jobs {dict(chosen)}, second page"] = _timed(http, "/v1/jobs", {**chosen, "cursor": first["next"]})[1]
    slowest = sorted({**pages, **jobs}.items(), key=lambda item: -item[1])[:5]
    began = time.perf_counter()
    exported = sum(1 for _ in _lines(http, f"/v1/jobs/{population.large_job}/trials/export?format=jsonl"))
    export_seconds = time.perf_counter() - began
    return {
        "pages": len(pages),
        "list_median_seconds": statistics.median(pages.values()),
        "list_p95_seconds": sorted(pages.values())[int(0.95 * (len(pages) - 1))],
        "list_worst_seconds": max(pages.values()),
        "job_small_seconds": _timed(http, f"/v1/jobs/{population.small_job}", {})[1],
        "job_seconds": _timed(http, f"/v1/jobs/{population.large_job}", {})[1],
        "job_bytes": len(http.get(f"/v1/jobs/{population.large_job}").content),
        "case_seconds": _timed(http, f"/v1/jobs/{population.large_job}/cases/1", {})[1],
        "job_pages": len(jobs),
        "jobs_median_seconds": statistics.median(jobs.values()),
        "jobs_p95_seconds": sorted(jobs.values())[int(0.95 * (len(jobs) - 1))],
        "jobs_worst_seconds": max(jobs.values()),
        "exported_trials": exported,
        "exported_per_second": exported / export_seconds,
        "slowest": dict(slowest),
    }


def sqlite_job(database: Database, job_id: str) -> float:
    """Seconds of the page of the same job where a SQLite holds it, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="tuner-bench-") as directory:
        to = Database(f"sqlite:///{directory}/ledger.sqlite3")
        copied_job(database, job_id, to)
        with _served(to, {}) as http:
            seconds = _timed(http, f"/v1/jobs/{job_id}", {})[1]
        to.close()
    return seconds


def _middle(http: Any, job: str, query: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same query, starting about half-way; by the cursors of five of its pages of 1,000."""
    cursor, page = first["next"], first
    for _ in range(min(5, int(first["total"]) // 2000)):
        page = http.get(f"/v1/jobs/{job}/trials", params={**query, "limit": 1000, "cursor": cursor}).json()
        cursor = page["next"]
    return None if cursor is None or page is first else {**query, "cursor": cursor}


def _timed(http: Any, path: str, query: Mapping[str, Any]) -> tuple[Any, float]:
    """The answer, and the median seconds of some requests."""
    samples = []
    answer: Any = None
    for _ in range(REPEATS):
        began = time.perf_counter()
        response = http.get(path, params=dict(query))
        samples.append(time.perf_counter() - began)
        assert response.status_code == 200, response.text
        answer = response
    return answer.json(), statistics.median(samples)


def _lines(http: Any, path: str) -> Iterator[str]:
    with http.stream("GET", path) as response:
        assert response.status_code == 200, response.status_code
        yield from response.iter_lines()


@contextmanager
def _hushed(file: Path | None) -> Iterator[None]:
    """The file stands meanwhile: others on this machine may wait for its end."""
    if file is not None:
        file.touch()
    try:
        yield
    finally:
        if file is not None:
            file.unlink(missing_ok=True)


@contextmanager
def _served(database: Database, seen: dict[str, Any]) -> Iterator[Any]:
    """A client of a service on this database; its SELECTs are put into ``seen`` with their values."""
    paper = unit_tests("api")
    with tempfile.TemporaryDirectory(prefix="tuner-bench-") as directory:
        url = database.url.render_as_string(hide_password=False)
        served = paper.Served(load_settings(data_dir=Path(directory), database_url=url, port=0))

        def note(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> None:
            if statement.lstrip().upper().startswith(("SELECT", "WITH")):
                seen.setdefault(_shape(statement), (statement, values))

        event.listen(served.context.database.engine, "before_cursor_execute", note)
        with served:
            yield served.http


def _shape(statement: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"(%\([a-z_0-9]+\)s(::\w+)?(, )?)+", "?", statement))


SMALL_TABLES = frozenset({"alembic_version", "devices", "workers", "device_leases", "alias_states", "catalogs"})
"""Of which a deployment has few rows: reading them whole is what a planner should do."""
LARGE_TABLE_ROWS = 10_000
"""A table with more is not to be read whole, whatever the planner thinks."""


def explained(database: Database, seen: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Whole-table reads that an index should have spared, as ``table: statement``; and every statement with its plan.

    A table that is small, or most of whose rows are asked for, is rightly read whole: it is enough that the planner has
    an index for the time when it is large.
    """
    scans, plans = [], []
    with database.read() as session:
        connection = session.connection()
        sizes = dict(connection.exec_driver_sql("SELECT relname, reltuples FROM pg_class WHERE relkind = 'r'").all())
        for shape, (statement, values) in seen.items():
            for preferring in ("on", "off"):
                connection.exec_driver_sql(f"SET LOCAL enable_seqscan = {preferring}")
                tree = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", values).scalar_one()
                for table in _scanned(tree[0]["Plan"]):
                    ours = table not in SMALL_TABLES and not table.startswith("pg_")
                    if ours and (preferring == "off" or sizes[table] > LARGE_TABLE_ROWS):
                        scans.append(f"{table}: {shape[:300]}")
            connection.exec_driver_sql("SET LOCAL enable_seqscan = on")
            analysed = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {statement}", values)
            plans.append(shape[:400] + "\n" + "\n".join("    " + row[0] for row in analysed))
    return scans, plans


def _scanned(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield str(plan["Relation Name"])
    for inner in plan.get("Plans", ()):
        yield from _scanned(inner)


def _table(found: Mapping[str, Any]) -> str:
    def show(name: str, value: Any) -> str:
        if isinstance(value, float):
            return f"{value * 1e3:.1f} ms" if name.endswith("_seconds") else f"{value:,.0f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    rows = [f"{name:<24} {show(name, value)}" for name, value in found.items() if name != "slowest"]
    rows += [f"  slow: {seconds * 1e3:7.1f} ms  {name}" for name, seconds in found["slowest"].items()]
    return "\n".join(rows) + "\n"


def _say(asked: argparse.Namespace, line: str) -> None:
    if not asked.json:
        sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""A PostgreSQL ledger of a million trials: some jobs run through the real ledger on paper, then copied in the database.

The jobs that are copied were submitted, opened, advanced and recorded by the product's own code; only compilers and
devices are acted (``tests/unit/jobs``), and their records are as long as real ones (``paper_records``). Half of the
copies are jobs of one case, half are jobs of 64. Fifty more jobs of 64 cases, the newest, have no trials: lists of jobs
look at none.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import Column, Connection, insert, select, text

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import postgres_cluster  # noqa: E402

from bench.paper_records import long_recording_tools  # noqa: E402
from tuner_service.db.engine import Database  # noqa: E402
from tuner_service.db.migrate import upgrade  # noqa: E402
from tuner_service.db.models import Base  # noqa: E402
from tuner_service.db.queries import cases as case_queries  # noqa: E402
from tuner_service.db.queries import jobs as job_queries  # noqa: E402
from tuner_service.db.queries import trials as trial_queries  # noqa: E402
from tuner_service.jobs.opening import open_case  # noqa: E402
from tuner_service.jobs.request import Limits, resolve_request  # noqa: E402
from tuner_service.jobs.submit import submit  # noqa: E402

KERNELS = ("softmax", "rms_norm", "layer_norm", "log_softmax", "masked_softmax")
CASES_OF_LARGE_JOB = 64
LISTED_LARGE_JOBS = 50
"""As many as a page of jobs has by default."""
SPACE = {"width": [8, 16, 32, 64], "unroll": [1, 2, 4], "partials": [1, 2, 4]}
SERVER = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "shared_buffers": "512MB",
    "effective_cache_size": "4GB",
}
"""As an operator would have it: what is committed is on the disk."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How fast the product's own code filled the ledger; rows and events per second of wall time."""

    opened_trials: int
    opened_per_second: float
    recorded_events: int
    recorded_per_second: float


@dataclass(frozen=True, kw_only=True)
class Population:
    """What is in the ledger."""

    trials: int
    small_job: str
    large_job: str
    rates: Rates


@contextmanager
def server(directory: Path | None = None) -> Iterator[postgres_cluster.PostgresCluster]:
    """A PostgreSQL of our own on a real disk, with durable commits."""
    settings, memory = dict(postgres_cluster.SETTINGS), postgres_cluster.MEMORY
    postgres_cluster.SETTINGS.update(SERVER)
    postgres_cluster.MEMORY = directory or Path("/nonexistent")  # not the memory file system of the tests
    cluster = postgres_cluster.PostgresCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        postgres_cluster.SETTINGS.clear()
        postgres_cluster.SETTINGS.update(settings)
        postgres_cluster.MEMORY = memory


def populate(database: Database, trials: int) -> Population:
    """Fills an empty database with at least so many trials, and as many as one whole job of 64 cases takes."""
    upgrade(database)
    originals, rates = _originals(database)
    with database.read() as session:
        of_originals = session.execute(text("SELECT count(*) FROM trials")).scalar_one()
    # Half of the copies become cases of large jobs.
    copies = max(-(-trials // of_originals) - 1, 2 * -(-CASES_OF_LARGE_JOB // len(originals)))
    large = _copy(database, originals, copies)
    _copy_for_lists(database, originals)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    with database.read() as session:
        total = session.execute(text("SELECT count(*) FROM trials")).scalar_one()
    return Population(trials=total, small_job=originals[0], large_job=large, rates=rates)


def paper_desk() -> ModuleType:
    """The ledger's test desk, on which steps are acted."""
    return unit_tests("jobs")


def unit_tests(package: str) -> ModuleType:
    """What the unit tests of a package share: its part of the product, on paper."""
    name, path = f"paper_{package}", ROOT / "tests" / "unit" / package / "conftest.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _originals(database: Database) -> tuple[list[str], Rates]:
    paper = paper_desk()
    device = paper.paper_device()
    # A hundred times as fast at most, and some ten candidates within a percent of the fastest.
    tools = long_recording_tools(paper)(seconds=lambda ordinal: 1e-6 * (100 + (ordinal * 7919) % 4001 / 40))
    service = paper.Service(database, tools, device)
    jobs, opened, opening, recorded, recording = [], 0, 0.0, 0, 0.0
    for number, kernel in enumerate(KERNELS):
        case = {"kernel": kernel, "dims": {"rows": 64, "cols": 256 + number}}
        body = {"cases": [case], "space": SPACE, "labels": {"kernel": kernel, "team": "bench"}}
        resolved = resolve_request(body, devices={device.id: device}, limits=Limits())
        job_id = submit(database, resolved, idempotency_key=None, body_sha256=f"{number:064x}")
        with database.read() as session:
            case_id = case_queries.case_rows(session, job_id)[0]["id"]
        began = time.perf_counter()
        with database.write() as session:
            job_queries.update_job(session, job_id, {"state": "running"})
        assert open_case(database, job_id, case_id)
        opening += time.perf_counter() - began
        with database.read() as session:
            opened += trial_queries.count_trials(session, case_id)
        events = _count(database, "job_events")
        began = time.perf_counter()
        ended = service.finish(job_id, limit=10**6)
        recording += time.perf_counter() - began
        recorded += _count(database, "job_events") - events
        assert ended["state"] == "succeeded", ended["error"]
        jobs.append(job_id)
    rates = Rates(
        opened_trials=opened,
        opened_per_second=opened / opening,
        recorded_events=recorded,
        recorded_per_second=recorded / recording,
    )
    return jobs, rates


def _count(database: Database, table: str) -> int:
    with database.read() as session:
        return int(session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def _copy(database: Database, originals: list[str], copies: int) -> str:
    """Copies every original so many times; the id of the last whole job of 64 cases."""
    large, whole, position = "", "", 0
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for number in range(copies):
            for job in originals:
                alone = number < copies // 2
                if alone:
                    to, place = f"{job}_{number}", 0
                else:
                    if not large or position == CASES_OF_LARGE_JOB:
                        whole, large, position = large or whole, f"{job}_L{number}", 0
                        _insert_large_job(connection, originals, large)
                    to, place, position = large, position, position + 1
                if alone:
                    _insert(connection, "jobs", job, number, {"id": f"'{to}'"})
                    _insert(connection, "job_labels", job, number, {"job_id": f"'{to}'"})
                    _insert(connection, "job_events", job, number, {"job_id": f"'{to}'"})
                renamed = "regexp_replace(result::text, '(trl_[0-9A-Za-z]+)', :text_suffix, 'g')::json"
                own = {"id": "id || :suffix", "job_id": f"'{to}'"}
                _insert(connection, "cases", job, number, {**own, "position": str(place), "result": renamed})
                own |= {"case_id": "case_id || :suffix", "same_code_as": "same_code_as || :suffix"}
                _insert(connection, "trials", job, number, own)
                _insert(connection, "case_events", job, number, {"case_id": "case_id || :suffix"})
    return whole or large


def _insert_large_job(connection: Connection, originals: list[str], job_id: str) -> None:
    """A job that asks for the cases of the originals in turn, without its cases."""
    jobs, labels = Base.metadata.tables["jobs"], Base.metadata.tables["job_labels"]
    row = dict(connection.execute(select(jobs).where(jobs.c.id == originals[0])).one()._mapping)
    table = Base.metadata.tables["cases"]
    documents = list(connection.scalars(select(table.c.document).where(table.c.job_id.in_(originals))))
    asked = [documents[number % len(documents)] for number in range(CASES_OF_LARGE_JOB)]
    connection.execute(insert(jobs), {**row, "id": job_id, "request": {**row["request"], "cases": asked}})
    connection.execute(insert(labels), {"job_id": job_id, "name": "team", "value": "bench"})


def _copy_for_lists(database: Database, originals: list[str]) -> None:
    """Jobs of 64 cases with all that lists look at."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for number in range(LISTED_LARGE_JOBS):
            job_id = f"{max(originals)}_z{number:02}"
            _insert_large_job(connection, originals, job_id)
            for position in range(CASES_OF_LARGE_JOB):
                job = originals[position % len(originals)]
                own = {"id": f"id || '_z{number:02}_{position}'", "job_id": f"'{job_id}'", "position": str(position)}
                _insert(connection, "cases", job, number, own)


def copied_job(source: Database, job_id: str, to: Database) -> None:
    """A job with all that its page shows, in another database, whatever its kind."""
    upgrade(to)
    tables = Base.metadata.tables
    case_ids = select(tables["cases"].c.id).where(tables["cases"].c.job_id == job_id)
    own = {
        "jobs": tables["jobs"].c.id == job_id,
        "cases": tables["cases"].c.job_id == job_id,
        "trials": tables["trials"].c.job_id == job_id,
        "case_events": tables["case_events"].c.case_id.in_(case_ids),
    }
    with source.read() as session, to.write() as other:
        for name, where in own.items():
            found = session.execute(select(tables[name]).where(where).execution_options(yield_per=1000))
            for rows in found.mappings().partitions():
                other.connection().execute(insert(tables[name]), [dict(row) for row in rows])


def _insert(connection: Connection, table: str, job: str, number: int, changed: Mapping[str, str]) -> None:
    """Copies the rows of one job in one table; ``changed``: column → its SQL expression. Numbered rows get new ones."""
    columns = [column.name for column in Base.metadata.tables[table].columns if not _is_numbered(column)]
    values = ", ".join(changed.get(column, column) for column in columns)
    where = {
        "jobs": "id = :job",
        "case_events": "case_id IN (SELECT id FROM cases WHERE job_id = :job)",
    }.get(table, "job_id = :job")
    statement = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} WHERE {where}"
    parts = {"job": job, "suffix": f"_{number}", "text_suffix": rf"\1_{number}"}
    connection.execute(text(statement), {name: part for name, part in parts.items() if f":{name}" in statement})


def _is_numbered(column: Column[Any]) -> bool:
    return column.primary_key and column.autoincrement is True

"""Databases that earlier versions left, with the rows that their code made: brought to head, and gone on with."""

from __future__ import annotations

import gzip
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, text

sys.path.append(str(Path(__file__).parent))

from store_old_database import module

from catalogs.audit import audit
from tuner_service.db.engine import Database
from tuner_service.db.migrate import migration_config, revisions, upgrade
from tuner_service.db.models import Base
from tuner_service.db.queries import acceptances, cases, idempotency, jobs, trials
from tuner_service.db.queries.job_lists import list_jobs
from tuner_service.db.schema import schema_state
from tuner_service.errors import IdempotencyMismatch
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.promote import manifest_of

FIXTURES = Path(__file__).parent / "fixtures"
STORED = sorted(path.name.removesuffix(".sql.gz") for path in FIXTURES.glob("*.sql.gz"))
_QUICK = (STORED[0], STORED[-2])
EVERY = [
    pytest.param(name, marks=() if name.endswith("sqlite") or name in _QUICK else pytest.mark.full) for name in STORED
]
"""PostgreSQL's first and last every time, those between with the full tests."""
RENAMED = {("idempotency_keys", "job_id"): "made_id"}
"""(table, column) of an old schema → the column's name now."""

acting = module(Path(__file__).parents[1] / "unit" / "jobs" / "conftest.py")


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database as it was stored: ``0003.sqlite``, ``0003.postgresql``, …"""
    script = gzip.decompress((FIXTURES / f"{request.param}.sql.gz").read_bytes()).decode()
    if request.param.endswith(".sqlite"):
        path = tmp_path / "ledger.sqlite3"
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        url = f"sqlite:///{path}"
    else:
        url = str(request.getfixturevalue("empty_postgres_url"))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script.encode())
    database = Database(url)
    yield database
    database.close()


def rows(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Every table of ours with its rows, in some fixed order."""
    metadata = MetaData()
    metadata.reflect(database.engine)
    with database.read() as session:
        return {
            name: sorted((dict(row._mapping) for row in session.execute(table.select())), key=repr)
            for name, table in metadata.tables.items()
            if name in Base.metadata.tables
        }


def test_every_earlier_revision_is_stored_for_both() -> None:
    """``store_old_database.py`` says how the one before a new revision gets here."""
    assert [f"{revision}.{kind}" for revision in revisions()[:-1] for kind in ("postgresql", "sqlite")] == STORED


@pytest.mark.parametrize("stored", EVERY, indirect=True)
def test_what_an_earlier_version_left_is_kept_and_gone_on_with(stored: Database, request: Any) -> None:
    revision = request.node.callspec.params["stored"][:4]
    state = schema_state(stored)
    assert (state.state, state.revision) == ("outdated", revision)
    assert list(state.pending) == revisions()[revisions().index(revision) + 1 :]
    before = rows(stored)
    assert {len(found) for name, found in before.items() if name in ("jobs", "cases", "devices")} == {4, 1}

    upgrade(stored)
    assert schema_state(stored).state == "ready"
    assert differences(stored) == []
    after = rows(stored)
    for table, found in before.items():
        columns = [RENAMED.get((table, column), column) for column in found[0]] if found else []
        kept = [tuple(row.values()) for row in found]
        assert sorted(kept, key=repr) == sorted((tuple(row[c] for c in columns) for row in after[table]), key=repr)
    goes_on(stored, revision)


def differences(database: Database) -> list[Any]:
    """Between the database and the models; the task queue's tables are another's."""

    def ours(name: str | None, kind: str, _parents: Any) -> bool:
        return kind != "table" or not str(name).startswith("procrastinate")

    with database.read() as session:
        options = {"compare_type": True, "include_name": ours}
        return list(compare_metadata(MigrationContext.configure(session.connection(), opts=options), Base.metadata))


def goes_on(database: Database, revision: str) -> None:
    """This version's code reads everything, and finishes what the earlier one began."""
    device, frozen = acting.paper_device(), revision > "0001"
    with database.read() as session:
        found = list_jobs(session)["items"]
    assert [job["state"] for job in found] == ["queued", "running", "cancelled", "succeeded"]
    with database.read() as session:
        found = [jobs.get_job(session, job["id"]) for job in found]
    acting.check_counts(database)
    assert all(acting.adds_up(job) for job in found)
    queued, running, _, succeeded = found
    assert queued["device"]["id"] == device.id
    if frozen:
        device = acting.paper_device(
            identity_digest=succeeded["device"]["identity_digest"],
            toolchain_fingerprint=succeeded["device"]["toolchain_fingerprint"],
        )
    with database.write() as session:
        assert idempotency.made_before(session, "a key", "5" * 64, making="job_1") == queued["id"]
        with pytest.raises(IdempotencyMismatch):
            idempotency.made_before(session, "a key", "6" * 64, making="job_1")
        assert [job["id"] for job in list_jobs(session, label="team=kernels")["items"]] == [succeeded["id"]]
        assert all(row["program_digest"] for row in cases.case_rows(session, succeeded["id"]))
        fastest = trials.list_trials(session, succeeded["id"], sort="median_seconds")["items"][0]
    assert fastest["timing"]["device_batch"]["median_seconds"] > 0

    service = acting.Service(database, acting.PaperTools(), device)
    assert set(service.unfinished) == {queued["id"], running["id"]}
    for job in (running, queued):
        assert service.finish(job["id"])["state"] == "succeeded"
    again = freeze_jobs(database, FreezeRequest(jobs=(succeeded["id"],)))
    assert again["left_out"] == []
    if not frozen:
        return
    with database.read() as session:
        promoted = manifest_of(session, "prod").entries[0]
        (acceptance,) = acceptances.list_acceptances(session, catalog=promoted.digest)["items"]
        evidence = acceptances.evidence(session, acceptance["id"])
    assert acceptance["verdict"] == "accepted"
    assert evidence is not None
    lacking = {"builds"} if revision == "0002" else set()  # evidence had no such part then, and is never changed
    assert {finding.field for finding in audit(evidence[0].encode()).findings} == lacking


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
    return str(request.getfixturevalue("empty_postgres_url"))


def test_an_upgrade_from_nothing_gives_the_models_schema(empty_url: str) -> None:
    database = Database(empty_url)
    found = schema_state(database)
    assert (found.state, found.revision, list(found.pending)) == ("empty", None, revisions())
    assert found.message.endswith("type: tuner db upgrade")
    upgrade(database)
    upgrade(database)
    assert schema_state(database).state == "ready"
    assert differences(database) == []
    database.close()


def test_of_several_upgrades_at_once_one_does_it(empty_url: str) -> None:
    failures: list[BaseException] = []

    def bring_up() -> None:
        database = Database(empty_url)
        try:
            gate.wait(60)
            upgrade(database)
        except BaseException as error:
            failures.append(error)
        finally:
            database.close()

    gate = threading.Barrier(4)
    threads = [threading.Thread(target=bring_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    database = Database(empty_url)
    assert schema_state(database).state == "ready"
    database.close()


def test_a_step_that_fails_leaves_the_database_as_it_was(empty_url: str) -> None:
    """What stands in the way of the last step undoes those before it, too."""
    database = Database(empty_url)
    config = migration_config()
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "0001")
        session.execute(text("CREATE TABLE workers (what TEXT)"))
    with pytest.raises(Exception, match=r'workers"? already exists'):
        upgrade(database)
    found = schema_state(database)
    assert (found.state, found.revision) == ("outdated", "0001")
    assert "catalogs" not in rows(database)
    database.close()


@pytest.fixture
def not_in_code_point_order(postgres: Any) -> Iterator[str]:
    """A PostgreSQL database whose own collation is the C library's."""
    name = postgres.create("TEMPLATE template0 LC_COLLATE 'C.utf8' LC_CTYPE 'C.utf8'")
    yield postgres.url(name)
    postgres.drop(name)


def test_texts_sort_by_code_points_whatever_the_database_does(not_in_code_point_order: str) -> None:
    database = Database(not_in_code_point_order)
    upgrade(database)
    query = (
        "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public' "
        "AND data_type IN ('character varying', 'text') AND collation_name IS DISTINCT FROM 'C'"
    )
    with database.read() as session:
        other = set(session.scalars(text(query)))
    assert {name for name in other if name.split(".")[0] in Base.metadata.tables} == set()
    database.close()


def test_a_database_of_another_encoding_is_refused(postgres: Any) -> None:
    name = postgres.create("TEMPLATE template0 ENCODING 'LATIN1'")
    database = Database(postgres.url(name))
    found = schema_state(database)
    assert (found.state, found.message) == ("unsuitable", "its encoding is LATIN1; create it anew with ENCODING 'UTF8'")
    with pytest.raises(Exception, match="LATIN1"):
        upgrade(database)
    database.close()
    postgres.drop(name)

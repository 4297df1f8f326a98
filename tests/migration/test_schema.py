"""Single steps of the migrations, and databases that none of them can be taken on."""

import json
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Table, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from search.program.digest import program_digest
from search.program.resolve import resolve_case
from tuner_service.db.engine import Database
from tuner_service.db.migrate import migration_config, upgrade
from tuner_service.db.models import Base
from tuner_service.db.queries.cases import case_rows
from tuner_service.db.queries.idempotency import made_before
from tuner_service.db.schema import require_ready, schema_state
from tuner_service.errors import DatabaseOutdated, DatabaseUnavailable, IdempotencyMismatch


def database_at(path: Path) -> Database:
    return Database(f"sqlite:///{path / 'ledger.sqlite3'}")


def test_keys_of_jobs_are_kept_by_the_step_that_lets_them_belong_to_anything(tmp_path: Path) -> None:
    database = database_at(tmp_path)
    config = migration_config()
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "0002")
        device = "INSERT INTO jobs VALUES ('job_1', 'queued', '{}', 'd', 'cpu', '{}', NULL, 't', NULL, NULL)"
        session.execute(text(device))
        session.execute(text("INSERT INTO idempotency_keys VALUES ('k', 'sha', 'job_1', 't')"))
    upgrade(database)
    with database.write() as session:
        assert made_before(session, "k", "sha", making="job_2") == "job_1"
        with pytest.raises(IdempotencyMismatch, match="job_1"):
            made_before(session, "k", "another", making="job_2")
        assert made_before(session, "other", "sha", making="acc_1") is None
        assert made_before(session, "other", "sha", making="acc_2") == "acc_1", "it refers to no job"
    database.close()


def test_cases_that_are_there_get_the_digests_of_their_programs(tmp_path: Path) -> None:
    database = database_at(tmp_path)
    config = migration_config()
    known = resolve_case({"kernel": "rms_norm", "dims": {"rows": 2, "cols": 3}, "params": {"eps": 0.5}})
    gone = {**known.document(), "kernel": "no_such_kernel"}
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "0003")
        device = "INSERT INTO jobs VALUES ('job_1', 'queued', '{}', 'd', 'cpu', '{}', NULL, 't', NULL, NULL)"
        session.execute(text(device))
        for position, document in enumerate((known.document(), gone)):
            case = (
                "INSERT INTO cases VALUES (:id, 'job_1', :position, 'k', :document, '{}', '[]', 1, 0, 0, 0, NULL, '{}')"
            )
            values = {"id": f"case_{position}", "position": position, "document": json.dumps(document)}
            session.execute(text(case), values)
    upgrade(database)
    with database.read() as session:
        rows = case_rows(session, "job_1")
    assert [row["program_digest"] for row in rows] == [program_digest(known.program, known.params), None]
    assert [row["document"] for row in rows] == [known.document(), gone]
    database.close()


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    database = database_at(tmp_path)
    upgrade(database)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'ffff'"))
    with pytest.raises(DatabaseUnavailable, match="ffff"):
        upgrade(database)
    found = schema_state(database)
    assert (found.state, found.revision) == ("newer", "ffff")
    with pytest.raises(DatabaseOutdated, match="update tuner"):
        require_ready(database)
    database.close()


def test_a_file_that_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").write_bytes(b"these bytes are no database at all, and not few " * 100)
    database = database_at(tmp_path)
    with pytest.raises(DatabaseUnavailable):
        upgrade(database)
    with pytest.raises(DatabaseUnavailable, match=r"ledger\.sqlite3 cannot be used: file is not a database"):
        schema_state(database)
    database.close()


@pytest.mark.parametrize("name", ["jobs", "users", "procrastinate_jobs"])
def test_a_schema_of_something_else_is_a_typed_error(tmp_path: Path, name: str) -> None:
    database = database_at(tmp_path)
    with database.write() as session:
        session.execute(text(f"CREATE TABLE {name} (what TEXT)"))
    with pytest.raises(DatabaseUnavailable, match=rf"ledger\.sqlite3 \({name}\) were not made by this program"):
        upgrade(database)
    assert schema_state(database).state == "foreign"
    with pytest.raises(DatabaseOutdated, match="were not made by this program"):
        require_ready(database)
    database.close()


@pytest.mark.parametrize("table", Base.metadata.sorted_tables, ids=lambda table: table.name)
def test_every_table_can_live_in_postgresql(table: Table) -> None:
    """The same models serve a scale-out deployment: types, and names within its 63 characters."""
    assert f"CREATE TABLE {table.name}" in str(CreateTable(table).compile(dialect=postgresql.dialect()))
    names = [index.name for index in table.indexes] + [constraint.name for constraint in table.constraints]
    assert all(name is not None and len(str(name)) <= 63 for name in names)

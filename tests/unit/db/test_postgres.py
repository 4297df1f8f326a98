"""What is PostgreSQL's own: who waits for whom and how long, what its errors mean, and life after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from tuner_service.db.engine import Database
from tuner_service.db.queries import devices
from tuner_service.errors import DatabaseBusy, DatabaseFull, DatabaseProblem, DatabaseUnavailable

pytestmark = pytest.mark.databases("postgresql")


def spec(name: str) -> dict[str, object]:
    return {"id": name, "kind": "cpu"}


def see(database: Database, *names: str) -> None:
    with database.write() as session:
        for name in names:
            devices.seen_device(session, spec(name))


def seen(database: Database) -> list[str]:
    with database.read() as session:
        return [device["id"] for device in devices.list_devices(session)]


def test_a_read_sees_one_snapshot(database: Database) -> None:
    see(database, "one")
    with database.read() as session:
        assert [device["id"] for device in devices.list_devices(session)] == ["one"]
        see(database, "two")
        assert [device["id"] for device in devices.list_devices(session)] == ["one"]
    assert seen(database) == ["one", "two"]


def test_a_write_that_waits_sees_what_it_waited_for(database: Database) -> None:
    """Whatever the server's own default is: a row that was locked is read as the one before left it."""
    see(database, "one")
    with database.write() as session:
        kind = session.execute(text("SHOW transaction_isolation")).scalar_one()
    assert kind == "read committed"


def test_a_row_that_another_holds_is_waited_for_then_named(open_database: Callable[..., Database]) -> None:
    holder, impatient = open_database(), open_database(lock_wait_seconds=0.05)
    see(holder, "one")
    with holder.write() as session:
        devices.seen_device(session, spec("one"))
        with pytest.raises(DatabaseBusy, match="a lock was not given up in time"):
            see(impatient, "one")
        with pytest.raises(DatabaseBusy):
            see(holder.within(0.05), "one")
        assert isinstance(impatient.write_problem, DatabaseBusy)
        see(impatient, "two")
    assert impatient.write_problem is None
    assert seen(holder) == ["one", "two"]


def test_two_that_wait_for_each_other_are_told_apart(open_database: Callable[..., Database]) -> None:
    one, other = open_database(), open_database()
    see(one, "a", "b")
    both_hold = threading.Barrier(2)
    came: list[DatabaseProblem] = []

    def cross(database: Database, first: str, second: str) -> None:
        try:
            with database.write() as session:
                devices.seen_device(session, spec(first))
                both_hold.wait(30)
                devices.seen_device(session, spec(second))
        except DatabaseProblem as problem:
            came.append(problem)

    threads = [threading.Thread(target=cross, args=args) for args in ((one, "a", "b"), (other, "b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (problem,) = came
    assert isinstance(problem, DatabaseBusy)
    assert "waited for each other" in str(problem)


CODES = [
    ("53100", DatabaseFull, "no space left"),  # what the server says when its disk is full
    ("40001", DatabaseBusy, "another transaction came first"),
    ("57014", DatabaseBusy, "took too long"),
    ("57P02", DatabaseUnavailable, "cannot be used"),
    ("58030", DatabaseUnavailable, "cannot be used"),
    ("25006", DatabaseUnavailable, "cannot be used"),
    ("53200", DatabaseUnavailable, "cannot be used"),
    ("XX001", DatabaseUnavailable, "cannot be used"),
    ("42P01", DatabaseUnavailable, "cannot be used"),
]


def test_error_codes_of_the_server_have_a_meaning(database: Database) -> None:
    for code, kind, words in CODES:
        with pytest.raises(kind, match=words), database.write() as session:
            session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; END $$"))
        assert isinstance(database.write_problem, kind)
    with pytest.raises(Exception, match="so it is") as caught, database.write() as session:
        session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '23505'; END $$"))
    assert not isinstance(caught.value, DatabaseProblem), "a broken constraint is a bug of ours"


def test_a_process_takes_no_more_connections_than_it_may(open_database: Callable[..., Database]) -> None:
    few = open_database(connections=2, lock_wait_seconds=0.05)
    with few.read(), few.read():
        with pytest.raises(DatabaseBusy, match="every connection of this process"), few.read():
            raise AssertionError("there is no third one")
        with pytest.raises(DatabaseBusy, match="every connection of this process"):
            see(few, "one")
    see(few, "one")
    assert few.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_server_without_a_connection_left_is_busy(
    postgres: Any, postgres_url: str, open_database: Callable[..., Database]
) -> None:
    database = open_database(lock_wait_seconds=0.05)
    with closing(psycopg.connect(postgres_url)):
        postgres.execute(f"ALTER DATABASE {database.url.database} CONNECTION LIMIT 0")
        postgres.execute("CREATE ROLE plain LOGIN; GRANT ALL ON DATABASE postgres TO plain")
        plain = Database(database.url.set(username="plain").render_as_string(), lock_wait_seconds=0.05)
        with pytest.raises(DatabaseBusy, match="no connection left"), plain.read():
            raise AssertionError("no connection was left")
        plain.close()
    postgres.execute("DROP OWNED BY plain; DROP ROLE plain")


def test_a_restart_costs_what_was_under_way_and_nothing_that_was_stored(postgres: Any, database: Database) -> None:
    """Immediate mode: the server does not say goodbye, and recovers from its log."""
    see(database, "before")

    def cut_off() -> None:
        with database.write() as session:
            devices.seen_device(session, spec("lost"))
            postgres.stop("immediate")
            devices.seen_device(session, spec("lost too"))

    try:
        with pytest.raises(DatabaseUnavailable):
            cut_off()
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="cannot be used"):
                seen(database)
            with pytest.raises(DatabaseUnavailable):
                see(database, "never")
    finally:
        postgres.start()
    assert seen(database) == ["before"]
    see(database, "after")
    assert database.write_problem is None
    assert seen(database) == ["after", "before"]


def test_texts_with_nul_are_kept_without_it(database: Database) -> None:
    """A compiler may say anything; what it said is not a reason to lose a result."""
    see(database, "a\0b")
    with database.read() as session:
        assert session.execute(text("SELECT id FROM devices")).scalar_one() == "a\N{REPLACEMENT CHARACTER}b"
        assert session.execute(text("SELECT count(*) FROM devices WHERE id = :id"), {"id": "a\0"}).scalar_one() == 0
    with database.write() as session:
        devices.seen_device(session, {**spec("json"), "said": "a\0b\ud800", "big": 2**70, "nan": float("nan")})
    with database.read() as session:
        found = devices.get_device(session, "json")
    assert (found["said"], found["big"], found["nan"]) == ("a\0b\ud800", 2**70, "nan")


def test_what_a_url_says_wins(postgres: Any, postgres_url: str) -> None:
    database = Database(f"{postgres_url}?application_name=mine&connect_timeout=3&password=secret")
    with database.read() as session:
        name, lock, statement, idle = (
            session.execute(text(f"SHOW {setting}")).scalar_one()
            for setting in (
                "application_name",
                "lock_timeout",
                "statement_timeout",
                "idle_in_transaction_session_timeout",
            )
        )
    assert (name, lock, statement, idle) == ("mine", "30s", "2min", "2min")
    assert "secret" not in database.place
    database.close()


@pytest.fixture
def unreachable() -> Iterator[Database]:
    database = Database("postgresql://nobody:secret@127.0.0.1:1/nothing")
    yield database
    database.close()


def test_a_server_that_is_not_there_is_unavailable(unreachable: Database) -> None:
    for use in (unreachable.read, unreachable.write):
        with pytest.raises(DatabaseUnavailable, match="refused") as caught, use():
            raise AssertionError("there is no server")
        assert "secret" not in str(caught.value)

"""Databases for tests: SQLite files, and databases of one real PostgreSQL server per test process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from postgres_cluster import PostgresCluster
from reserved_cpu import (
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_runtest_protocol,
    pytest_xdist_make_scheduler,
)

from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade

__all__ = [
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_runtest_protocol",
    "pytest_xdist_make_scheduler",
]
TEMPLATE = "template_at_head"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a database runs on both kinds: PostgreSQL with the full ones, unless it is marked ``databases``."""
    if "database_url" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("databases")
    kinds = marker.args if marker else ("sqlite", pytest.param("postgresql", marks=pytest.mark.full))
    metafunc.parametrize("database_url", kinds, indirect=True)


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services of this test process wait for each other, and not for those of the next worker: nothing here is about
    how fast a kernel is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    """The server of this test process, started when first asked for. Tests may stop it if they start it again."""
    cluster = PostgresCluster()
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresCluster) -> str:
    """Name of a database at the newest revision, without rows, that others are copied from."""
    postgres.execute(f"CREATE DATABASE {TEMPLATE}")
    database = Database(postgres.url(TEMPLATE))
    upgrade(database)
    database.close()
    return TEMPLATE


@pytest.fixture
def empty_postgres_url(postgres: PostgresCluster) -> Iterator[str]:
    """``postgresql://…`` of a database of its own, without any table."""
    name = postgres.create()
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def postgres_url(postgres: PostgresCluster, postgres_template: str) -> Iterator[str]:
    """``postgresql://…`` of a database of its own, at the newest revision, without rows."""
    name = postgres.create(f"TEMPLATE {postgres_template} STRATEGY file_copy")
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file at the newest revision, without rows, that others are copied from."""
    path = tmp_path_factory.mktemp("template") / "head.sqlite3"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.close()  # the last connection moves the log into the file
    return path


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database of its own, at the newest revision, without rows: sqlite or postgresql, as the test runs."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(request.getfixturevalue("sqlite_template").read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def open_database(database_url: str) -> Iterator[Callable[..., Database]]:
    """Opens the test's database, as often as it likes: each is what another process would have."""
    opened: list[Database] = []

    def open_it(**options: float) -> Database:
        opened.append(Database(database_url, **options))
        return opened[-1]

    yield open_it
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: Callable[..., Database]) -> Database:
    """The test's database, opened."""
    return open_database()

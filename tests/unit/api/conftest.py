"""A served API on an empty database, with a device attached and nothing that runs jobs: they stay queued."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from search.device.probe import probe_cpu
from search.device.spec import DeviceSpec
from search.lowering.contract import Source
from search.lowering.store import ArtifactStore
from tuner_service.app import create_app
from tuner_service.artifacts.database import DatabaseBlobs
from tuner_service.db.engine import Database
from tuner_service.jobs.acceptance import is_acceptance
from tuner_service.jobs.acceptance_ledger import end_acceptance
from tuner_service.jobs.ending import end_job
from tuner_service.settings import Settings


class AttachedDevice:
    """A machinery that has this machine's CPU and starts nothing."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings, self.database = settings, database
        device = probe_cpu(toolchain={"compiler": "none"}, unavailable=None)
        self.known: dict[str, DeviceSpec] = {device.id: device}
        self.probed = threading.Event()
        self.probed.set()
        self.woken: list[str] = []
        self.looked: list[str | None] = []
        self.looking = False
        self.remembered: dict[str, DeviceSpec] = {}
        self.reasons: dict[str, str] = {}
        self.depths: dict[str, dict[str, int]] = {}
        self.sources: dict[str, Source] = {}
        self.libraries: dict[str, bytes] = {}
        self.shared_artifacts: DatabaseBlobs | None = DatabaseBlobs(database)
        self.artifact_store = ArtifactStore(settings.data_dir / "artifacts")

    @property
    def devices(self) -> Mapping[str, DeviceSpec]:
        return self.known if self.probed.is_set() else {}

    def away(self) -> Mapping[str, DeviceSpec]:
        return self.remembered

    def look(self, name: str | None = None) -> None:
        self.looked.append(name)

    def wait_looked(self, name: str, timeout_seconds: float) -> bool:
        self.looked.append(name)
        return not self.looking

    def leases(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def waiting(self) -> Mapping[str, str]:
        return self.reasons

    def queues(self) -> Mapping[str, Mapping[str, int]]:
        return self.depths

    @property
    def leads(self) -> bool:
        return True

    def live_workers(self) -> int | None:
        return None

    def wait_probed(self, timeout_seconds: float) -> bool:
        return self.probed.wait(min(timeout_seconds, 0.2))

    def wake(self, job_id: str) -> None:
        self.woken.append(job_id)

    def cancel(self, job_id: str) -> None:
        end = end_acceptance if is_acceptance(job_id) else end_job
        end(self.database, job_id, "cancelled")

    def load_source(self, source_sha256: str) -> Source | None:
        return self.sources.get(source_sha256)

    def load_library(self, sha256: str) -> bytes | None:
        return self.libraries.get(sha256)

    def reserve(self) -> None:
        self.settings.data_dir.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class Served:
    """A running service: ``http`` is a client of it, ``app.state.context`` its insides."""

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(settings, machinery=AttachedDevice)
        config = uvicorn.Config(self.app, host="127.0.0.1", port=0, log_config=None, lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    @property
    def context(self) -> Any:
        return self.app.state.context

    def __enter__(self) -> Served:
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive(), "the service did not start"
            self.thread.join(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.context.closing.set()
        self.server.should_exit = True
        self.thread.join()

    def job_count(self) -> int:
        return int(self.http.get("/v1/jobs", params={"limit": 1}).json()["total"])


@contextmanager
def serving(data_dir: Path, **settings: Any) -> Iterator[Served]:
    with Served(Settings(data_dir=data_dir, stream_poll_seconds=0.02, **settings)) as served:
        yield served


@pytest.fixture(scope="session")
def serve() -> Any:
    """``serving``, for a test that wants several services."""
    return serving


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a service runs on both kinds: PostgreSQL with the full ones, unless it is marked ``databases``."""
    if "served" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("databases")
        kinds = marker.args if marker else ("sqlite", pytest.param("postgresql", marks=pytest.mark.full))
        metafunc.parametrize("served", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data_dir = tmp_path_factory.mktemp("data")
    if request.param == "sqlite":
        with serving(data_dir) as running:
            yield running
        return
    postgres, template = (request.getfixturevalue(name) for name in ("postgres", "postgres_template"))
    name = postgres.create(f"TEMPLATE {template} STRATEGY file_copy")
    with serving(data_dir, database_url=postgres.url(name)) as running:
        yield running
    postgres.drop(name)


@pytest.fixture
def http(served: Served) -> httpx.Client:
    return served.http

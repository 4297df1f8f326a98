"""Starting a worker process: its settings, its database, its directory, and the signals that stop it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import start_http_server

from tuner_service.artifacts.opening import open_artifacts
from tuner_service.db.agreement import agree
from tuner_service.db.engine import Database
from tuner_service.db.schema import require_ready
from tuner_service.errors import DataDirInUse, WorkerMisplaced
from tuner_service.metrics import REGISTRY
from tuner_service.settings import Settings
from tuner_service.telemetry import configure_logging
from tuner_service.workers.datadir import DataDir
from tuner_service.workers.process import WorkerOptions, WorkerProcess

WORKERS_FOLDER = "workers"
"""In the data directory: one folder for each worker process of this host that was given none."""
MAXIMUM_WORKERS = 64


def run_worker(
    settings: Settings,
    *,
    devices: tuple[str, ...],
    compile_only: bool,
    compile_slots: int,
    own_data_dir: Path | None,
    name: str | None,
    ready: Callable[[str], None],
) -> None:
    """Works until SIGTERM or SIGINT.

    Raises WorkerMisplaced, DatabaseOutdated, or SettingsDisagree, when the database, the artifact store or a setting is
    none that a worker can use,
    InvalidInput when the host has no such device, DatabaseProblem, or ArtifactsUnavailable, when the database or the
    artifact store does not answer at the start, DataDirInUse, DataDirUnusable.
    """
    configure_logging(settings.log_level)
    database = Database(settings.resolved_database_url, connections=settings.database_connections)
    try:
        if database.is_sqlite:
            raise WorkerMisplaced(
                f"workers need the PostgreSQL database of a service that runs with TUNER_ENGINE=postgres, and "
                f"{database.place} is a file; give --database-url postgresql://…"
            )
        require_ready(database, command=settings.upgrade_command)
        if settings.artifacts == "local":  # TUNER_ENGINE is the service's word: a worker may lack it
            raise WorkerMisplaced(
                "TUNER_ARTIFACTS=local keeps what a worker builds from the service and other workers; leave it away, "
                "or name what the service has: database, a directory of all machines or s3://BUCKET"
            )
        settings = settings.model_copy(update={"engine": "postgres"})  # what else a worker's defaults depend on
        agree(database, settings, who=f"tuner worker {socket.gethostname()}:{os.getpid()}")
        data_dir = DataDir(own_data_dir) if own_data_dir else free_data_dir(settings.data_dir)
        place, limit_bytes = settings.artifacts_place, settings.max_artifact_bytes
        process = WorkerProcess(
            database=database,
            data_dir=data_dir,
            artifacts=open_artifacts(place, data_dir.artifacts, database, limit_bytes=limit_bytes),
            options=WorkerOptions(
                devices=devices,
                compile_only=compile_only,
                compile_slots=compile_slots,
                compile_only_devices=settings.compile_only_names,
                name=name,
                version=_version(),
                child_timeout_seconds=settings.child_timeout_seconds,
                drain_seconds=settings.drain_seconds,
                lost_seconds=settings.worker_lost_seconds,
            ),
        )
        answering = _answer_prometheus(settings.metrics_host, settings.metrics_port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.stop())
        with answering:
            process.run(ready)
    finally:
        database.close()


def free_data_dir(base: Path) -> DataDir:
    """The first of a host's worker directories that no process uses, locked. DataDirInUse, DataDirUnusable."""
    for number in range(1, MAXIMUM_WORKERS + 1):
        folder = DataDir(base / WORKERS_FOLDER / str(number))
        try:
            folder.lock()
        except DataDirInUse:
            continue
        return folder
    raise DataDirInUse(base / WORKERS_FOLDER, f"of {MAXIMUM_WORKERS} workers")


@contextmanager
def _answer_prometheus(host: str, port: int) -> Iterator[None]:
    """For the block; nothing without a port. OSError when it is taken."""
    if port == 0:
        yield
        return
    try:
        server, thread = start_http_server(port, host, registry=REGISTRY)
    except OSError as error:
        raise OSError(error.errno, f"cannot answer Prometheus on {host}:{port}: {error.strerror}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _version() -> str:
    try:
        return version("tuner")
    except PackageNotFoundError:
        return "0+uninstalled"

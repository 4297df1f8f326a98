"""The service put together: database, running machinery, HTTP routes; and ``serve``, which runs it until stopped."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse

from search.lowering.artifact_cache import ArtifactCache
from search.program.library import package_problems
from tuner_service.api import middleware, problems
from tuner_service.api.context import Context, Runtime
from tuner_service.api.gauges import Gauges
from tuner_service.api.openapi import base_document, live_document
from tuner_service.api.query import known_parameters
from tuner_service.api.routes import (
    acceptances,
    aliases,
    artifacts,
    catalogs,
    devices,
    jobs,
    kernels,
    plans,
    prune,
    system,
    trials,
    winners,
    workers,
)
from tuner_service.api.version import VERSION
from tuner_service.artifacts.opening import open_artifacts
from tuner_service.db.agreement import agree
from tuner_service.db.engine import Database
from tuner_service.db.schema import require_ready
from tuner_service.engine.contract import Task
from tuner_service.settings import Settings
from tuner_service.telemetry import configure_logging
from tuner_service.web import docs
from tuner_service.workers.runtime import Runtime as EmbeddedRuntime

SERVICE_FILE = "service.json"
"""In the data directory while the service runs: ``{"url", "pid", "database"}``, so that commands find it."""
_log = logging.getLogger("tuner.app")


class _Parts:
    """What the service consists of besides its routes: started once, stopped once."""

    def __init__(self, context: Context, database: Database, runtime: Machinery) -> None:
        self.context, self.database, self.runtime = context, database, runtime
        self._state: Literal["new", "started", "stopped"] = "new"

    def start(self) -> None:
        """Sees to it that the database is up to date and begins. ServiceError; nothing runs then."""
        if self._state != "new":
            return
        self._state = "started"
        try:
            # The directory first: a second service must not touch the database of the one that runs.
            self.runtime.reserve()
            require_ready(self.database, command=self.context.settings.upgrade_command)
            who = f"tuner serve {socket.gethostname()}:{os.getpid()}"
            agree(self.database, self.context.settings, who=who, grows=True)
            for problem in package_problems():
                _log.warning("kernels of an installed package are left out: %s", problem)
            self.runtime.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops what runs; may be called again."""
        if self._state != "started":
            return
        self._state = "stopped"
        self.context.closing.set()
        self.runtime.close()
        self.database.close()


class Machinery(Runtime, Protocol):
    """A runtime that the app starts and closes."""

    def reserve(self) -> None:
        """Take the data directory. Raises DataDirInUse when another service works on it, DataDirUnusable."""
        ...

    def start(self) -> None:
        """Begin; returns at once. The database must be up to date."""
        ...

    def close(self) -> None:
        """Stop running work, kill children, release the data directory."""
        ...


def create_app(settings: Settings, *, machinery: Callable[[Settings, Database], Machinery] | None = None) -> FastAPI:
    """The service as an ASGI application.

    The database is looked at and the machinery started when the application starts (ASGI lifespan);
    devices are probed in the background. ``machinery`` stands in for the embedded one.
    """
    database = Database(settings.resolved_database_url, connections=settings.database_connections)
    runtime = (machinery or _MACHINERY[settings.engine])(settings, database)
    hurried = database.within(settings.request_database_wait_seconds)
    context = Context(settings=settings, database=hurried, runtime=runtime)
    parts = _Parts(context, database, runtime)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        parts.start()
        try:
            yield
        finally:
            parts.stop()

    app = FastAPI(
        title="Tuner",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(known_parameters)],
        redirect_slashes=False,
    )
    app.state.context = context
    app.state.gauges = Gauges(context)
    app.state.parts = parts
    for routes in (jobs, trials, plans, winners, catalogs, acceptances, aliases, artifacts, kernels, devices, system):
        app.include_router(routes.router)
    app.include_router(workers.router)
    app.include_router(prune.router)
    app.include_router(docs.router)
    app.router.routes.append(docs.static_files())
    problems.install(app)
    app.add_middleware(middleware.BodyLimit, limit_bytes=settings.max_body_bytes)
    app.add_middleware(middleware.LoopbackOnly)
    app.add_middleware(middleware.RequestLog)
    # Made when first asked for: a tenth of the start-up time, and a service may never be asked.
    base = functools.cache(lambda: base_document(app, version=VERSION))

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        return JSONResponse(live_document(base(), context))

    return app


def print_listening(url: str) -> None:
    """The one line that ``serve`` prints: ``listening on http://HOST:PORT``."""
    sys.stdout.write(f"listening on {url}\n")
    sys.stdout.flush()


def serve(settings: Settings, *, announce: Callable[[str], None] = print_listening) -> None:
    """Run the service until SIGTERM or SIGINT; ``announce`` gets its URL once it accepts requests.

    Raises OSError when the port cannot be bound, and ServiceError when the database cannot be used as it is, or
    the data directory cannot be used or is another service's; ArtifactsUnavailable, InvalidInput of a setting.
    """
    configure_logging(settings.log_level)
    listener = _bind(settings.host, settings.port)
    if threading.current_thread() is threading.main_thread():
        # Until the server handles signals itself, a stop must go through the end of this function too.
        signal.signal(signal.SIGTERM, _exit)
    with listener:
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=int(settings.shutdown_timeout_seconds),
        )
        server = _Server(config, app.state.context, _url(listener), settings.data_dir / SERVICE_FILE, announce)
        parts: _Parts = app.state.parts
        try:
            # Before the server, which would log a failure as its own, with a traceback.
            parts.start()
            server.run(sockets=[listener])
        finally:
            parts.stop()


def _exit(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


class _Server(uvicorn.Server):
    """Says when it listens, and lets open event streams end when it is told to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        context: Context,
        url: str,
        service_file: Path,
        announce: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self.context, self.url, self.service_file, self.announce = context, url, service_file, announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        known = {"url": self.url, "pid": os.getpid(), "database": self.context.database.place}
        _replace(self.service_file, json.dumps(known))
        self.announce(self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not the inherited one: it raises the signal again after a clean stop, and the exit status would say "killed".
        self.context.closing.set()
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.context.closing.set()
        self.service_file.unlink(missing_ok=True)
        await super().shutdown(sockets=sockets)


def _embedded(settings: Settings, database: Database) -> Machinery:
    return EmbeddedRuntime(
        database=database,
        data_dir=settings.data_dir,
        compile_slots=settings.compile_slots,
        child_timeout_seconds=settings.child_timeout_seconds,
        advance_period_seconds=settings.advance_period_seconds,
        stop_timeout_seconds=settings.shutdown_timeout_seconds,
        request_wait_seconds=settings.request_database_wait_seconds,
        compile_only=settings.compile_only_names,
        artifacts=_artifacts(settings, database),
    )


def _scaled_out(settings: Settings, database: Database) -> Machinery:
    # Imported here: the embedded engine does without PostgreSQL's driver and the queue's package.
    from tuner_service.engine.postgres import PostgresEngine
    from tuner_service.engine.reaper import Reaper
    from tuner_service.workers.scaleout import ScaleOutRuntime

    url, lost_seconds = settings.resolved_database_url, settings.worker_lost_seconds
    return ScaleOutRuntime(
        database=database,
        engine=PostgresEngine(
            database_url=url,
            handler=_performs_nothing,
            after=lambda job_id: None,
            on_failure=lambda task, error: None,
        ),
        reaper=lambda on_lost: Reaper(database_url=url, on_lost=on_lost, lost_seconds=lost_seconds),
        artifacts=_artifacts(settings, database),
        data_dir=settings.data_dir,
        lost_seconds=lost_seconds,
        advance_period_seconds=settings.advance_period_seconds,
        request_wait_seconds=settings.request_database_wait_seconds,
        stop_timeout_seconds=settings.shutdown_timeout_seconds,
    )


def _artifacts(settings: Settings, database: Database) -> ArtifactCache:
    folder, limit_bytes = settings.data_dir / "artifacts", settings.max_artifact_bytes
    return open_artifacts(settings.artifacts_place, folder, database, limit_bytes=limit_bytes)


def _performs_nothing(task: Task, _cancelled: Callable[[], bool]) -> None:
    raise AssertionError(f"an engine without slots was given {task.key}")


_MACHINERY: dict[str, Callable[[Settings, Database], Machinery]] = {"embedded": _embedded, "postgres": _scaled_out}


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)

"""The service put together: database, running machinery, HTTP routes; and ``serve``, which runs it until stopped."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse

from search.errors import InvalidInput, Problem
from tuner_service.api import middleware, problems
from tuner_service.api.context import Context, Runtime
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
    system,
    trials,
    winners,
)
from tuner_service.api.version import VERSION
from tuner_service.db.engine import Database
from tuner_service.db.migrate import upgrade
from tuner_service.errors import ServiceError
from tuner_service.settings import LOOPBACK_NAMES, Settings, is_loopback
from tuner_service.telemetry import configure_logging
from tuner_service.web import docs
from tuner_service.workers.runtime import Runtime as EmbeddedRuntime

SERVICE_FILE = "service.json"
"""In the data directory while the service runs: ``{"url", "pid"}``, so that commands find it."""
_log = logging.getLogger("tuner.app")


class Machinery(Runtime, Protocol):
    """A runtime that the app starts and closes."""

    def start(self) -> None:
        """Begin; returns at once. Raises DataDirInUse when another service works on the data directory."""
        ...

    def close(self) -> None:
        """Stop running work, kill children, release the data directory."""
        ...


def create_app(settings: Settings, *, machinery: Callable[[Settings, Database], Machinery] | None = None) -> FastAPI:
    """The service as an ASGI application.

    The database is brought up to date and the machinery started when the application starts (ASGI lifespan);
    devices are probed in the background. ``machinery`` stands in for the embedded one.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.resolved_database_url)
    runtime = (machinery or _embedded)(settings, database)
    context = Context(settings=settings, database=database, runtime=runtime)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            upgrade(database)
            runtime.start()
        except ServiceError as error:
            app.state.start_error = error
            raise
        try:
            yield
        finally:
            context.closing.set()
            runtime.close()
            database.close()

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
    app.state.start_error = None
    for routes in (jobs, trials, plans, winners, catalogs, acceptances, aliases, artifacts, kernels, devices, system):
        app.include_router(routes.router)
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

    Raises InvalidInput for a host that is no loopback address, OSError when the port cannot be bound, and ServiceError
    when the database cannot be brought up to date or another service works on the data directory.
    """
    require_loopback(settings.host)
    configure_logging(settings.log_level)
    listener = _bind(settings.host, settings.port)
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
        try:
            server.run(sockets=[listener])
        except SystemExit:
            if app.state.start_error is not None:
                raise app.state.start_error from None
            raise


def require_loopback(host: str) -> None:
    """Raises InvalidInput unless ``host`` is a loopback address."""
    if not is_loopback(host):
        message = (
            "the service has no API keys yet, so it binds loopback addresses only; "
            "reach it from another machine through an SSH tunnel"
        )
        raise InvalidInput([Problem(field="/host", value=host, message=message, allowed=list(LOOPBACK_NAMES))])


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
        _replace(self.service_file, json.dumps({"url": self.url, "pid": os.getpid()}))
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
    )


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

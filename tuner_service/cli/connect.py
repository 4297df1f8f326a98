"""Which service a command talks to: the one named, the one that runs on the data directory, or a private one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.launch import PrivateService
from tuner_service.cli.output import say
from tuner_service.client import Client, ServiceUnreachable
from tuner_service.database_url import same_database, without_password
from tuner_service.settings import load_settings

READY_TIMEOUT_SECONDS = 60.0
SERVICE_FILE = "service.json"
"""Written by a running service into its data directory: ``{"url", "pid", "database"}``."""


def resolve_data_dir(data_dir: Path | None) -> Path:
    """The data directory to use: the one given, else the setting's."""
    return (data_dir if data_dir is not None else load_settings().data_dir).expanduser().absolute()


def running_url(data_dir: Path) -> str | None:
    """Address of the service that runs on a data directory, None when none answers.

    CommandError when it has another database than ``TUNER_DATABASE_URL`` names: answers would be from the wrong one.
    """
    known = _known_service(data_dir)
    url = known.get("url")
    if not isinstance(url, str):
        return None
    try:
        with Client(url) as client:
            healthy = client.healthy()
    except ServiceUnreachable:
        return None
    if healthy:
        _require_meant(data_dir, known.get("database"))
    return url if healthy else None


def _known_service(data_dir: Path) -> dict[str, Any]:
    try:
        known = json.loads((data_dir / SERVICE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _require_meant(data_dir: Path, database: Any) -> None:
    """Refuses a service on another database than the environment names. ``database``: what the service told of it."""
    named = load_settings().database_url
    if named is None:
        return
    if not isinstance(database, str):
        say(f"note: the service on {data_dir} does not say which database it has; TUNER_DATABASE_URL is not used")
    elif not same_database(named, database):
        raise CommandError(
            f"the service that runs on {data_dir} keeps its data in {without_password(database)}, and "
            f"TUNER_DATABASE_URL names {without_password(named)}; leave the variable away to ask that service, or name "
            "the service that you mean with --url or --data-dir"
        )


@contextmanager
def connected(
    *, url: str | None, data_dir: Path | None, private: bool = True, without: str = "start one with `tuner serve`"
) -> Iterator[Client]:
    """A client of the service to use.

    ``private=False`` refuses to start one for the duration of the command (``without`` says what to do instead).
    Raises CommandError (status UNREACHABLE) when nothing answers.
    """
    if url is not None:
        with Client(url) as client:
            await_ready(client)
            yield client
        return
    where = resolve_data_dir(data_dir)
    found = running_url(where)
    if found is not None:
        with Client(found) as client:
            await_ready(client)
            yield client
        return
    if not private:
        raise CommandError(f"no service runs on {where}: {without}", status=ExitStatus.UNREACHABLE)
    with PrivateService(where) as service:
        say(f"started a private service at {service.url} for this command (data in {where})")
        with Client(service.url) as client:
            await_ready(client)
            yield client


def await_ready(client: Client, *, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
    """Wait until the service is ready and has looked for devices."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        state = client.readiness()
        if state is None:
            raise CommandError(f"no service answers at {client.url}", status=ExitStatus.UNREACHABLE)
        if state.get("ready") and state.get("devices") == "probed":
            return
        if time.monotonic() > deadline:
            said = ", ".join(f"{name}: {value}" for name, value in state.items())
            raise CommandError(
                f"the service at {client.url} is not ready after {timeout_seconds:.0f} s ({said})",
                status=ExitStatus.UNREACHABLE,
            )
        time.sleep(0.1)

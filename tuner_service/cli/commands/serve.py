"""``tuner serve``: the HTTP service with the embedded engine, on this machine's devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from search.children.importing import uncollected
from search.errors import ArtifactsUnavailable
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.output import print_json
from tuner_service.errors import ServiceError
from tuner_service.settings import load_settings


def serve(
    host: Annotated[str | None, typer.Option(help="Loopback address to bind. Default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 picks a free one. Default 8000.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Database, artifact store and lock live here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON: {url, pid}.")] = False,
) -> None:
    """Run the service until it is stopped. Prints ``listening on http://HOST:PORT`` when ready.

    Every other setting is an environment variable: see ``tuner settings``.
    """
    given: dict[str, Any] = {"host": host, "port": port, "data_dir": data_dir}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    # Imported here: the web framework and the database would slow every other command down.
    with uncollected():
        from tuner_service.app import print_listening
        from tuner_service.app import serve as run

    try:
        run(settings, announce=_print_ready if as_json else print_listening)
    except OSError as error:
        # The port is taken, or the data directory cannot be written: the user's to mend.
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise CommandError(text, status=ExitStatus.BAD_INPUT) from error
    except (ServiceError, ArtifactsUnavailable) as error:
        raise CommandError(str(error), status=ExitStatus.BAD_INPUT) from error


def _print_ready(url: str) -> None:
    print_json({"url": url, "pid": os.getpid()})

"""``tuner worker``: a process that compiles and measures for a service on PostgreSQL, on the devices of its host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from search.children.importing import uncollected
from search.device.probe import COMPILE_ONLY_DEVICES
from search.errors import ArtifactsUnavailable
from tuner_service.cli.errors import BadOptionError, CommandError, ExitStatus
from tuner_service.errors import DatabaseOutdated, DatabaseProblem, ServiceError
from tuner_service.settings import Settings, load_settings

NAME_CHARACTERS = "letters, digits, dots, dashes and underscores, at most 40"


def worker(
    database_url: Annotated[
        str | None,
        typer.Option(help="postgresql://… of the service's database. Default: TUNER_DATABASE_URL.", show_default=False),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="cpu|nvidia|KIND|ID|cuda-sm_90",
            help="Attach this device of the host. Repeatable. Default: every one.",
        ),
    ] = None,
    compile_slots: Annotated[
        int | None, typer.Option(min=0, max=256, help="Compile tasks at the same time; 0: this host only measures.")
    ] = None,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Compile, and measure nothing.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Cache and work files. Default: one of its own in the data directory.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer Prometheus on this port. Default: no port.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this host in its CPU's id: several machines of one make need one each."),
    ] = None,
) -> None:
    """Attach this host's devices to a service. Prints one line when ready, and runs until it is stopped.

    SIGTERM lets what runs end within TUNER_DRAIN_SECONDS, then hands it back; a second one does so at once.
    """
    if name is not None and not _is_plain(name):
        raise BadOptionError("--name", name, "this is no name for a host", allowed=NAME_CHARACTERS)
    given: dict[str, Any] = {
        "database_url": database_url,
        "data_dir": data_dir,
        "metrics_port": metrics_port,
    }
    settings = load_settings(**{key: value for key, value in given.items() if value is not None})
    slots = settings.compile_slots if compile_slots is None else compile_slots
    measured = [word for word in device or () if word not in COMPILE_ONLY_DEVICES]
    if compile_only and measured:
        message = "--compile-only measures nothing, so it attaches no such device; leave one of the two options away"
        raise BadOptionError("--device", measured[0], message, allowed=", ".join(COMPILE_ONLY_DEVICES))
    if compile_only and not slots:
        raise BadOptionError("--compile-slots", slots, "a worker that only compiles needs some", allowed="1 to 256")
    _run(
        settings,
        devices=tuple(device or ()),
        compile_only=compile_only,
        compile_slots=slots,
        own_data_dir=data_dir,
        name=name,
    )


def _run(
    settings: Settings,
    *,
    devices: tuple[str, ...],
    compile_only: bool,
    compile_slots: int,
    own_data_dir: Path | None,
    name: str | None,
) -> None:
    # Imported here: the database would slow every other command down.
    with uncollected():
        from tuner_service.workers.main import run_worker

    try:
        run_worker(
            settings,
            devices=devices,
            compile_only=compile_only,
            compile_slots=compile_slots,
            own_data_dir=own_data_dir,
            name=name,
            ready=_print_ready,
        )
    except DatabaseOutdated as error:
        raise CommandError(str(error), status=ExitStatus.BAD_INPUT) from error
    except (ArtifactsUnavailable, DatabaseProblem) as error:
        raise CommandError(str(error), status=ExitStatus.UNREACHABLE) from error
    except (ServiceError, OSError) as error:  # a port that is taken, a directory that cannot be written
        raise CommandError(str(error), status=ExitStatus.BAD_INPUT) from error


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= 40 and name.isascii() and all(one.isalnum() or one in ".-_" for one in name)


def _print_ready(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

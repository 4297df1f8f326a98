"""The command's entry point: commands by name, and one place where errors become messages and exit statuses."""

from __future__ import annotations

import gc
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from search.errors import InvalidInput, TunerError
from tuner_service.cli.commands import (
    cancel,
    catalog,
    db,
    demo,
    devices,
    fingerprint,
    jobs,
    kernels,
    lookup,
    plan,
    prune,
    reproduce,
    serve,
    settings,
    trials,
    tune,
    worker,
    workers,
)
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.output import say
from tuner_service.client import ApiProblem, ServiceUnreachable
from tuner_service.client.errors import field_text

app = typer.Typer(
    name="tuner",
    help="Tune kernels: enumerate, reject with reasons, measure, check, and look winners up exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.command("tune")(tune.tune)
app.command("plan")(plan.plan)
app.command("jobs")(jobs.jobs)
app.command("trials")(trials.trials)
app.command("cancel")(cancel.cancel)
app.add_typer(devices.app, name="devices")
app.add_typer(workers.app, name="workers")
app.command("kernels")(kernels.kernels)
app.command("lookup")(lookup.lookup)
app.command("reproduce")(reproduce.reproduce)
app.command("prune")(prune.prune)
app.command("settings")(settings.settings)
app.add_typer(catalog.app, name="catalog")
app.add_typer(db.app, name="db")
app.command("fingerprint")(fingerprint.fingerprint)
app.command("demo")(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            found = version("tuner")
        except PackageNotFoundError:  # run from a checkout that was never installed
            found = "unknown (not installed)"
        typer.echo(f"tuner {found}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Tune kernels: enumerate, reject with reasons, measure, check, and look winners up exactly."""


def main() -> None:
    """Run the command line; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started this may ignore it, and we ask how children ended
    status = run(sys.argv[1:])
    gc.freeze()  # nobody looks for garbage in a process that ends
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Run one command; the answer is its exit status. User errors end in one message on stderr, never a traceback."""
    try:
        app(arguments, prog_name="tuner")
    except SystemExit as end:
        if end.code == ExitStatus.INTERRUPTED:  # what typer makes of Ctrl-C, without a word
            say("interrupted")
        return end.code if isinstance(end.code, int) else ExitStatus.OK
    except KeyboardInterrupt:
        say("interrupted")
        return ExitStatus.INTERRUPTED
    except CommandError as error:
        say(f"error: {error}")
        return error.status
    except ApiProblem as error:
        say(f"error: {error}")
        return ExitStatus.BAD_INPUT if 400 <= error.status < 500 else ExitStatus.UNREACHABLE
    except ServiceUnreachable as error:
        say(f"error: {error}")
        return ExitStatus.UNREACHABLE
    except InvalidInput as error:
        for wrong in error.problems:
            say(f"error: {field_text(wrong.document())}")
        return ExitStatus.BAD_INPUT
    except TunerError as error:
        say(f"error: {type(error).__name__}: {error}")
        return ExitStatus.NEGATIVE
    return ExitStatus.OK

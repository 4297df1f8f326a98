"""``tuner workers``: the processes that compile and measure, what each does now, and an end for those that are lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, LimitOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table, say_cut
from tuner_service.cli.words import NOTHING, seconds_words

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def workers(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="running, draining, full, lost or gone.")] = None,
    host: Annotated[str | None, typer.Option(help="Only workers on this host.")] = None,
    device: Annotated[str | None, typer.Option(metavar="ID", help="Only workers that offer this device.")] = None,
    limit: LimitOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the worker processes of a service on PostgreSQL, the last started first, with what each does now."""
    if context.invoked_subcommand is not None:
        return
    filters = {name: value for name, value in (("state", state), ("host", host), ("device", device)) if value}
    with connected(url=url, data_dir=data_dir) as client:
        found = client.workers(limit=limit, **filters)
    if as_json:
        print_json({"items": found, "next": None, "total": found.total})
        return
    columns = ["worker", "state", "heard", "devices", ">compile slots", "does", "started", "version"]
    print_table(columns, [_row(one) for one in found])
    say_cut(len(found), found.total)


@app.command("forget")
def forget(
    worker_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a lost worker.", show_default=False)],
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a worker that is lost: nobody is alerted for it any more, and its devices are free at once.

    After an hour of silence a lost worker counts as gone by itself. One that lives is refused.
    """
    with connected(url=url, data_dir=data_dir) as client:
        worker = client.forget_worker(worker_id)
    if as_json:
        print_json(worker)
        return
    print_line(f"worker {worker['id']} is forgotten; it was heard of {_age(worker)} ago")


def _row(worker: Mapping[str, Any]) -> list[str]:
    does = ", ".join(map(_doing, worker["tasks"])) or NOTHING
    devices = ", ".join(worker["devices"]) or NOTHING
    heard = f"{_age(worker)} ago"
    started = str(worker["started_at"])
    return [
        worker["id"],
        worker["state"],
        heard,
        devices,
        str(worker["compile_slots"]),
        does,
        started,
        worker["version"],
    ]


def _age(worker: Mapping[str, Any]) -> str:
    return seconds_words(float(worker["silent_seconds"]))


def _doing(task: Mapping[str, Any]) -> str:
    waits = "" if task["begun"] else " (waits for quiet)"
    return f"{task['step']} of {task['job_id']}{waits}"

"""``tuner devices``: what is attached, why something cannot be used, and quarantine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.errors import ExitStatus
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table

app = typer.Typer(rich_markup_mode=None)

LOOK_PATIENCE_SECONDS = 30.0
"""How long a look at devices is waited for: it tries compilers, and waits itself while a measurement needs quiet."""


@app.callback(invoke_without_command=True)
def devices(
    context: typer.Context, url: UrlOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False
) -> None:
    """List the attached devices with kind, identity, toolchain and availability."""
    if context.invoked_subcommand is not None:
        return
    with connected(url=url, data_dir=data_dir) as client:
        found = client.devices(patience_seconds=LOOK_PATIENCE_SECONDS)
    if as_json:
        print_json({"items": found, "next": None, "total": len(found)})
        return
    rows = [
        [
            device["id"],
            device["kind"],
            device["name"],
            "yes" if device["available"] else f"no: {device['reason']}",
            device["toolchain_fingerprint"],
        ]
        for device in found
    ]
    print_table(["device", "kind", "name", "available", "toolchain"], rows)


@app.command("quarantine")
def quarantine(
    device_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a device.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", metavar="WORDS", help="Why, for people.", show_default=False)],
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a device out of use until it is released. What runs on it is stopped, charged to nobody; its jobs wait.

    Exits 1 when it is in quarantine already: the reason that stands there stays.
    """
    with connected(url=url, data_dir=data_dir) as client:
        device = client.quarantine_device(device_id, reason)
    standing = device["quarantine"] or {}
    already = f"is in quarantine already, since {standing.get('since')}: {standing.get('reason')}"
    _answer(device, already if not device["changed"] else f"is in quarantine: {standing.get('reason')}", as_json)


@app.command("release")
def release(
    device_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a device in quarantine.", show_default=False)],
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a device be used again that was put into quarantine. Jobs that wait for it go on.

    Exits 1 when it is in no quarantine.
    """
    with connected(url=url, data_dir=data_dir) as client:
        device = client.release_device(device_id)
    now = "can be used" if device["available"] else f"cannot be used: {device['reason']}"
    _answer(device, f"is released, and {now}" if device["changed"] else f"is in no quarantine; it {now}", as_json)


def _answer(device: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        print_json(device)
    else:
        print_line(f"{device['id']} {words}")
    if not device["changed"]:
        raise typer.Exit(ExitStatus.NEGATIVE)

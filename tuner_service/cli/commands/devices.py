"""``tuner devices``: what is attached, why something cannot be used, and release from quarantine."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_table

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


@app.command("release")
def release(
    device_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a device in quarantine.", show_default=False)],
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a device be used again that was put into quarantine. Jobs that wait for it go on."""
    with connected(url=url, data_dir=data_dir) as client:
        device = client.release_device(device_id)
    if as_json:
        print_json(device)
        return
    typer.echo(f"{device['id']} " + ("can be used" if device["available"] else f"is released; {device['reason']}"))

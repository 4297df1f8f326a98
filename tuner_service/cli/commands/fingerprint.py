"""``tuner fingerprint``: the toolchain fingerprint that a lookup names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner_service.cli.commands.devices import LOOK_PATIENCE_SECONDS
from tuner_service.cli.connect import connected
from tuner_service.cli.errors import BadOptionError, CommandError, ExitStatus
from tuner_service.cli.options import DataDirOption, DeviceOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line, say


def fingerprint(
    device: DeviceOption = "cpu",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the fingerprint to this file.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the toolchain fingerprint of a device as it is now: what `catalogs` lookups name as `toolchain`."""
    with connected(url=url, data_dir=data_dir) as client:
        found = client.devices(patience_seconds=0.0 if device == "cpu" else LOOK_PATIENCE_SECONDS)
    fitting = [one for one in found if device in (one["id"], one["kind"], one["identity_digest"])]
    if not fitting:
        there = ", ".join(one["id"] for one in found) or "none: no device was ever attached"
        raise BadOptionError("--device", device, "no such device", allowed=there)
    one = fitting[0]
    if not one["available"]:
        raise CommandError(f"device {one['id']} cannot be used: {one['reason']}", status=ExitStatus.NEGATIVE)
    if output is not None:
        try:
            output.write_text(one["toolchain_fingerprint"] + "\n", encoding="ascii")
        except OSError as error:
            raise BadOptionError("--output", str(output), f"cannot be written: {error.strerror or error}") from None
        say(f"wrote {output}")
    if as_json:
        names = ("toolchain_fingerprint", "toolchain", "identity_digest", "id", "kind")
        print_json({name: one[name] for name in names})
    elif output is None:
        print_line(one["toolchain_fingerprint"])

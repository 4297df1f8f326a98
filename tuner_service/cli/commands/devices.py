"""``tuner devices``: what is attached, and why something cannot be used."""

from __future__ import annotations

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_table


def devices(url: UrlOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """List the attached devices with kind, identity, toolchain and availability."""
    with connected(url=url, data_dir=data_dir) as client:
        found = client.devices()
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

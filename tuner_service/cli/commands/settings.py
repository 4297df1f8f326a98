"""``tuner settings``: every setting with its variable, value and default."""

from __future__ import annotations

from tuner_service.cli.options import JsonOption
from tuner_service.cli.output import print_json, print_table
from tuner_service.settings import describe, load_settings


def settings(as_json: JsonOption = False) -> None:
    """List every setting: its environment variable, its value now, its default, and what it does."""
    found = [setting.document() for setting in describe(load_settings())]
    if as_json:
        print_json({"items": found, "next": None, "total": len(found)})
        return
    rows = [[s["variable"], _shown(s["value"]), _shown(s["default"]), s["description"]] for s in found]
    print_table(["variable", "value", "default", "description"], rows)


def _shown(value: object) -> str:
    return "(not set)" if value is None else str(value)

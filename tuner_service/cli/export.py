"""A trial's source as a folder that a user can build by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search.lowering.contract import Source
from search.lowering.store import export
from tuner_service.cli.errors import BadOptionError

TRIAL_FILE = "trial.json"


def export_trial(source: Mapping[str, Any], trial: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write TileLang text, C text, header, build line and the trial's record; the answer is what was written."""
    known = {name: source[name] for name in Source.__dataclass_fields__ if name in source}
    known["build_command"] = tuple(known["build_command"])
    try:
        written = list(export(Source(**known), folder))
        record = folder / TRIAL_FILE
        record.write_text(json.dumps(trial, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadOptionError("--export", str(folder), f"cannot be written: {error.strerror or error}") from None
    return [*written, record]

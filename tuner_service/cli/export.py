"""A trial's source as a folder that a user can build by hand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner_service.cli.errors import BadOptionError, CommandError, ExitStatus

TILELANG_FILE = "kernel_tilelang.py"
C_FILE = "kernel.c"
BUILD_FILE = "build.sh"
TRIAL_FILE = "trial.json"


def export_files(source: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, str]:
    """The folder's files by plain name: TileLang text, C text, header, build line, the trial's record."""
    command = [str(word) for word in source["build_command"]]
    # The C text is named by the build line, so that the line works as it stands.
    c_name = next((word for word in command if word.endswith(".c")), C_FILE)
    files = {
        TILELANG_FILE: source["tilelang_text"],
        c_name: source["c_text"],
        source["header_name"]: source["header_text"],
        BUILD_FILE: "#!/bin/sh\nset -e\n" + shlex.join(command) + "\n",
        TRIAL_FILE: json.dumps(trial, indent=2, ensure_ascii=False) + "\n",
        **(source.get("files") or {}),
    }
    for name in files:
        if name != Path(name).name or name in ("", ".", ".."):
            raise CommandError(
                f"the service sent a file named {name!r}; refusing to write it", status=ExitStatus.NEGATIVE
            )
    return files


def export_trial(source: Mapping[str, Any], trial: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the folder (files of the same names are replaced); the answer is what was written."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in export_files(source, trial).items():
            path = folder / name
            path.write_text(text, encoding="utf-8")
            written.append(path)
        (folder / BUILD_FILE).chmod(0o755)
    except OSError as error:
        raise BadOptionError("--export", str(folder), f"cannot be written: {error.strerror or error}") from None
    return written

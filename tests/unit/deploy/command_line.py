"""Command lines of ``tuner``, parsed by the real commands; nothing is run."""

from __future__ import annotations

from typing import Any

import typer

from tuner_service.cli.main import app


def parse(words: list[str]) -> dict[str, Any]:
    """What a line's options and arguments are taken for; a line that is none is refused as the shell's user sees it."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while (commands := getattr(command, "commands", None)) and rest and not rest[0].startswith("-"):
        assert rest[0] in commands, f"tuner has no command {rest[0]!r}"
        command = commands[rest.pop(0)]
    return dict(command.make_context("tuner", rest).params)

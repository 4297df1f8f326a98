"""Where output goes: answers on stdout (only JSON with ``--json``), everything else on stderr."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 200
"""Columns of a table that goes to a file or a pipe, where nothing needs to be folded."""
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of what a terminal does not show as a character of its own."""


def stdout() -> Console:
    """Console for answers. Made anew, so that it follows a redirected ``sys.stdout``."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False)


def stderr() -> Console:
    """Console for progress and messages."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False)


def visible(text: str) -> str:
    """The text with every character that a terminal would obey or hide written as its escape.

    What is repeated may be a stranger's text: colours, cursor moves, right-to-left marks, zero-width signs.
    """
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape", "backslashreplace").decode()


def say(message: str) -> None:
    """One message on stderr, as it stands."""
    stderr().print(escape(visible(message)), soft_wrap=True)


def print_json(document: Any) -> None:
    """A JSON document on stdout, and nothing else."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_line(text: str = "") -> None:
    """One line on stdout, as it stands."""
    stdout().print(escape(visible(text)), soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """A table on stdout; a column whose name starts with ``>`` is set flush right."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(visible(cell)) for cell in row))
    stdout().print(table)


def say_cut(shown: int, total: int) -> None:
    """Says on stderr that a list was cut by its limit, if it was."""
    if shown < total:
        say(f"{shown} of {total}: --limit cut the list")

"""Every command line and every variable that a page or an example file names is one of the program's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from command_line import parse

from catalogs.opening import DIGEST_VARIABLE, SWITCH_VARIABLE
from search.jit.cache import CACHE_VARIABLE
from tuner_service.cli.main import app
from tuner_service.settings import CHILDREN_READ, Settings

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [path for path in sorted((ROOT / "examples" / "deploy").iterdir()) if path.is_file()]
FILES = [*PAGES, *EXAMPLES, ROOT / "docker-compose.yml", ROOT / "Dockerfile"]
DEPLOYING = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("docker", "kubernetes", "many-machines", "slurm")]
"""Pages whose prose names commands for a team to type; elsewhere prose abridges them."""
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:#? *\$ |\s*exec |\s*)(tuner [a-z][^|<>;&#)\n]*)", re.MULTILINE)


def command_lines(path: Path) -> list[str]:
    """What a shell would be given, and no test runs: console blocks, lines of an example, backticks in the prose."""
    text = path.read_text().replace("\\\n", " ")
    if path.suffix != ".md":
        return _COMMAND.findall(text)
    found = [line for block in _CONSOLE.findall(text) for line in _COMMAND.findall(block)]
    return found + (re.findall(r"`(tuner [a-z][^`…\n]*)`", text) if path in DEPLOYING else [])


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_are_understood(path: Path) -> None:
    for line in command_lines(path):
        words = shlex.split(line.removeprefix("tuner "), comments=True)
        try:
            parse(words)
        except (click.ClickException, AssertionError) as error:
            raise AssertionError(f"{path.name}: {line!r}: {error}") from error


def test_there_are_command_lines_to_understand() -> None:
    for path in (*DEPLOYING, ROOT / "examples" / "deploy" / "worker.sbatch"):
        assert command_lines(path), path


def environment_of(command: Any) -> set[str]:
    """The variables that options of a command, and of those below it, take their values from."""
    named = {str(option.envvar) for option in command.params if option.envvar}
    return named.union(*(environment_of(one) for one in getattr(command, "commands", {}).values()))


def test_variables_are_settings() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    known = {f"TUNER_{name.upper()}" for name in Settings.model_fields} | {name for name, _, _ in CHILDREN_READ}
    known |= environment_of(typer.main.get_command(app)) | {SWITCH_VARIABLE, DIGEST_VARIABLE}
    known |= {CACHE_VARIABLE} | set(re.findall(r"\$\{(TUNER_\w+)", compose))  # those are Compose's own
    known |= set(re.findall(r"\$\{(TUNER_\w+):-", (ROOT / "examples" / "deploy" / "worker.sbatch").read_text()))
    named = {path: set(re.findall(r"\bTUNER_[A-Z][A-Z_]*[A-Z]\b(?!=VALUE)", path.read_text())) for path in FILES}
    assert {str(path.relative_to(ROOT)): sorted(words - known) for path, words in named.items() if words - known} == {}

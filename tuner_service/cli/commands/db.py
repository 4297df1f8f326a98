"""``tuner db``: a database's schema, which is checked or brought to this version's, and what a deployment agreed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tuner_service.cli.database import bring_up, look, recorded_settings
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.options import DataDirOption, JsonOption
from tuner_service.cli.output import print_json, print_line, print_table, say
from tuner_service.cli.request import parse_pairs
from tuner_service.settings import Settings, load_settings

app = typer.Typer(
    help="The database's schema: check it, or bring it to this version's (there is no downgrade: restore a backup); "
    "and the settings that all processes of a deployment have alike.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DatabaseUrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--database-url", help="The database. Default: TUNER_DATABASE_URL, or SQLite in the data directory."),
]


@app.command("check")
def check(database_url: DatabaseUrlOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Say whether this version can work with the database, and change nothing. Exits 1 when it cannot as it is."""
    found = look(_settings(database_url, data_dir))
    if as_json:
        print_json(found.document())
    else:
        print_line(f"the database {found.database}: {found.message}")
    if found.state != "ready":
        raise typer.Exit(ExitStatus.NEGATIVE)


@app.command("upgrade")
def upgrade(
    database_url: DatabaseUrlOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False
) -> None:
    """Bring the database to this version's schema: every step or none. An empty one is set up. Back it up first.

    Two upgrades at once do no harm: one waits for the other and finds nothing to do.
    """
    settings = _settings(database_url, data_dir)
    before = look(settings)
    if before.state not in ("ready", "empty", "outdated"):
        raise CommandError(f"the database {before.database}: {before.message}", status=ExitStatus.NEGATIVE)
    if before.pending:
        bring_up(settings)
    after = look(settings)
    if as_json:
        print_json({**after.document(), "before": before.revision, "applied": list(before.pending)})
        return
    done = f"applied {', '.join(before.pending)}" if before.pending else "nothing to do"
    print_line(f"the database {after.database} is at {after.revision}: {done}")


@app.command("settings")
def agreed_settings(
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="TUNER_NAME=VALUE", help="Change it for all processes, while none runs. Repeatable."
        ),
    ] = None,
    database_url: DatabaseUrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the settings that every process of the deployment must have alike, as recorded in the database.

    The first process that starts records its own, and another value is refused. `--set` changes what is recorded.
    """
    settings = _settings(database_url, data_dir)
    found = recorded_settings(settings, change=parse_pairs("--set", change or []))
    if any(one.startswith("TUNER_ARTIFACTS=") for one in change or []):
        say("artifacts are not moved: what is missing in the new place is built again when it is asked for")
    if as_json:
        print_json({"items": found, "next": None, "total": len(found)})
        return
    columns = ("name", "value", "recorded_at", "recorded_by")
    print_table(["setting", "value", "since", "recorded by"], [[one[column] for column in columns] for one in found])


def _settings(database_url: str | None, data_dir: Path | None) -> Settings:
    given = {"database_url": database_url, "data_dir": data_dir}
    return load_settings(**{name: value for name, value in given.items() if value is not None})

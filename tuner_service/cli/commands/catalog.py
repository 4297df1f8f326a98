"""``tuner catalog``: freeze, accept, audit, promote and look at catalogs. One command each in the files beside."""

from __future__ import annotations

import typer

from tuner_service.cli.commands import catalog_accept, catalog_aliases, catalog_frozen

app = typer.Typer(
    help="Frozen catalogs: freeze jobs, accept them in a replay, audit the evidence, promote, pull, look at them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("freeze")(catalog_frozen.freeze)
app.command("list")(catalog_frozen.list_catalogs)
app.command("get")(catalog_frozen.get)
app.command("diff")(catalog_frozen.diff)
app.command("accept")(catalog_accept.accept)
app.command("audit")(catalog_accept.audit)
app.command("promote")(catalog_aliases.promote)
app.command("rollback")(catalog_aliases.rollback)
app.command("pull")(catalog_aliases.pull)

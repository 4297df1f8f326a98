"""``tuner catalog promote | rollback | pull``: what an alias names, and bringing it to where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import catalogs
from catalogs import CatalogError
from tuner_service.cli.connect import connected
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.options import DataDirOption, IdempotencyKeyOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line
from tuner_service.client import Document

AliasArgument = Annotated[str, typer.Argument(metavar="[ALIAS]", help="Name of an alias.")]


def promote(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Digest of an accepted candidate catalog.")],
    alias: AliasArgument = "prod",
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have an alias name an accepted catalog, for the catalog's device and toolchain. Refused without acceptance."""
    with connected(url=url, data_dir=data_dir) as client:
        manifest = client.promote(alias, digest)
    _show(manifest, as_json=as_json)


def rollback(
    alias: AliasArgument = "prod",
    idempotency_key: IdempotencyKeyOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take an alias one promotion back."""
    with connected(url=url, data_dir=data_dir) as client:
        manifest = client.rollback(alias, idempotency_key=idempotency_key)
    _show(manifest, as_json=as_json)


def pull(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the local store; made when missing.")],
    alias: AliasArgument = "prod",
    source: Annotated[
        str | None,
        typer.Option(help="http(s)://HOST/v1/aliases/NAME. Default: ALIAS at the service that this command uses."),
    ] = None,
    artifacts: Annotated[bool, typer.Option("--artifacts", help="Bring the compiled libraries too.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring this device's catalogs of an alias into a store, verified; a serving process then needs no service."""
    if source is not None:
        pulled = _pull(source, store, artifacts=artifacts)
    else:
        with connected(url=url, data_dir=data_dir) as client:
            pulled = _pull(f"{client.url}/v1/aliases/{alias}", store, artifacts=artifacts)
    if as_json:
        print_json(vars(pulled))
        return
    for digest in pulled.digests:
        print_line(f"{digest} {'fetched' if digest in pulled.fetched else 'was there'}")
    for sha256 in pulled.artifacts:
        print_line(f"library {sha256}")


def _pull(source: str, store: Path, *, artifacts: bool) -> catalogs.Pulled:
    try:
        return catalogs.pull(source, str(store), artifacts=artifacts)
    except (CatalogError, OSError) as error:
        raise CommandError(str(error), status=ExitStatus.NEGATIVE) from None


def _show(manifest: Document, *, as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    for entry in manifest["entries"]:
        print_line(f"{manifest['alias']} → {entry['digest']} (device {entry['device'][:12]}…, toolchain "
                   f"{entry['toolchain'][:12]}…)")  # fmt: skip

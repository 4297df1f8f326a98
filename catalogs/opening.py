"""``catalogs.open``: which catalog a process pins, from a store, a file, a service or memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs import fields as check
from catalogs.catalog import ROLES, Catalog
from catalogs.device import DeviceIdentity, this_device
from catalogs.errors import CatalogError, FormatError, NotStored, QueryError
from catalogs.key import AnyToolchain
from catalogs.opened import OnMiss, OpenCatalog
from catalogs.snapshot import Snapshot
from catalogs.store import Store

if TYPE_CHECKING:
    from catalogs.misses import MissQueue

DIGEST_VARIABLE = "TUNER_CATALOG_DIGEST"
SWITCH_VARIABLE = "TUNER_CATALOG"


def open_catalog(
    path_or_store: str | os.PathLike[str] | Store | Catalog,
    source: str | None = None,
    *,
    on_miss: OnMiss = "return",
    role: str = "candidate",
    alias: str | None = None,
    device: DeviceIdentity | str | None = None,
    toolchain: str | AnyToolchain | None = None,
) -> OpenCatalog:
    """Open a catalog for lookups: of a store directory (by alias and this device), of a file, or one in memory.

    ``source`` (``https://HOST/v1/aliases/NAME``) is where a store is pulled from, at the first open and at each
    refresh; ``alias`` need only be named without a source, in a store that has several. ``device`` defaults to this
    machine; ``toolchain`` need only be named where the alias has several for the device. ``on_miss``: ``return`` the
    Miss, ``raise`` MissError, ``enqueue`` a tuning job at the source, or a callable that is given the Miss (which is
    then returned). ``TUNER_CATALOG_DIGEST`` forces one digest; ``TUNER_CATALOG=off`` makes every lookup a miss.

    Raises NotStored, FormatError, SourceError, or QueryError for arguments that cannot be meant.
    """
    if not callable(on_miss) and on_miss not in ("return", "raise", "enqueue"):
        raise QueryError(f"on_miss: expected 'return', 'raise', 'enqueue' or a callable, got {check.shown(on_miss)}")
    if role not in ROLES:
        raise QueryError(f"role: expected {' or '.join(ROLES)}, got {check.shown(role)}")
    if on_miss == "enqueue" and source is None:
        raise QueryError("on_miss: 'enqueue' needs a source, the service that the jobs go to")
    switch = os.environ.get(SWITCH_VARIABLE, "on").strip().lower()
    if switch not in ("on", "off", ""):
        raise QueryError(f"{SWITCH_VARIABLE}: expected on or off, got {check.shown(switch)}")
    if switch == "off":
        return OpenCatalog(lambda _: None, on_miss=on_miss, queue=None)
    forced = os.environ.get(DIGEST_VARIABLE, "").strip() or None
    if forced is not None and not check.is_sha256(forced):
        raise QueryError(f"{DIGEST_VARIABLE}: expected a sha256 (64 hexadecimal digits), got {check.shown(forced)}")
    queue: MissQueue | None = None
    if source is not None:
        from catalogs.client import Source
        from catalogs.misses import MissQueue

        service = Source(source)
        queue = MissQueue(service) if on_miss == "enqueue" else None
    wanted_device = this_device().digest if device is None else device if isinstance(device, str) else device.digest

    def load(refreshing: bool) -> Snapshot:
        found = _find(path_or_store, source, forced, alias, role, wanted_device, toolchain, refreshing)
        if found.role != role:
            raise CatalogError(f"catalog {found.digest} is a {found.role} catalog, and a {role} one was asked for")
        if forced is not None and found.digest != forced:
            raise CatalogError(f"{DIGEST_VARIABLE} forces {forced}, but this catalog is {found.digest}")
        return found

    return OpenCatalog(load, on_miss=on_miss, queue=queue)


def _find(
    origin: str | os.PathLike[str] | Store | Catalog,
    source: str | None,
    forced: str | None,
    alias: str | None,
    role: str,
    device: str,
    toolchain: str | AnyToolchain | None,
    refreshing: bool,
) -> Snapshot:
    if isinstance(origin, Catalog):
        return Snapshot.of(origin)
    if not isinstance(origin, Store):
        path = Path(origin)
        if path.is_file():
            return _file(path, forced)
        if not path.is_dir() and source is None:
            raise NotStored(f"{path}: no such catalog file or store directory")
        origin = Store(path)
    if forced is not None:
        return _forced(origin, source, forced)
    name = alias
    if source is not None:
        from catalogs.client import Source
        from catalogs.pulling import pull

        name = Source(source).alias
        if alias is not None and alias != name:
            raise QueryError(f"alias: the source is that of {name!r}, not of {alias!r}")
        if refreshing or name not in origin.aliases():
            pull(source, origin, device=device)
    if name is None:
        names = origin.aliases()
        if len(names) != 1:
            raise (QueryError if names else NotStored)(f"alias: {origin.folder} has {names}, name one of them")
        name = names[0]
    pointer = origin.alias(name)
    return origin.snapshot(pointer.manifest.pick(device, toolchain).digest_of(role))


def _forced(store: Store, source: str | None, digest: str) -> Snapshot:
    try:
        return store.snapshot(digest)
    except (NotStored, FormatError):
        if source is None:
            raise
    from catalogs.client import Source

    store.put(Source(source).catalog(digest))
    return store.snapshot(digest)


def _file(path: Path, forced: str | None) -> Snapshot:
    """A catalog's file: one out of a store is named by its digest and has its index beside it; any other says it."""
    try:
        data = path.read_bytes()
        if check.is_sha256(path.stem):
            beside = path.with_suffix(".index")
            return Snapshot.from_files(
                digest=path.stem, data=data, index=beside.read_bytes() if beside.is_file() else None
            )
    except OSError as error:
        raise CatalogError(f"{path}: {error}") from None
    return Snapshot.of(Catalog.from_bytes(data, digest=forced, name=str(path)))

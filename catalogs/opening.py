"""``catalogs.open``: which catalog a process pins, from a store, a file, a service or memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs import fields as check
from catalogs.canonical import parse_json, sha256_hex
from catalogs.catalog import ROLES, Catalog
from catalogs.device import DeviceIdentity, this_device
from catalogs.errors import CatalogError, FormatError, NotStored, QueryError, SourceError
from catalogs.key import AnyToolchain
from catalogs.manifest import ManifestEntry
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
    refresh, and when what the store holds is damaged or missing; ``alias`` need only be named without a source, in a
    store that has several. ``device`` defaults to this machine in a store; a file or a catalog in memory is compared
    with it only when it is given, and so with ``toolchain``, which need only be given where the alias has several for
    the device. ``on_miss``: ``return`` the
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
    wanted_device = _device_digest(this_device() if device is None else device)
    if toolchain is not None and not isinstance(toolchain, AnyToolchain) and not check.is_sha256(toolchain):
        raise QueryError(f"toolchain: expected a fingerprint (sha256) or ANY_TOOLCHAIN, got {check.shown(toolchain)}")

    def load(refreshing: bool) -> Snapshot:
        found = _find(path_or_store, source, forced, alias, role, wanted_device, toolchain, refreshing)
        if found.role != role:
            raise CatalogError(f"catalog {found.digest} is a {found.role} catalog, and a {role} one was asked for")
        if forced is not None and found.digest != forced:
            raise CatalogError(f"{DIGEST_VARIABLE} forces {forced}, but this catalog is {found.digest}")
        if device is not None and found.device != wanted_device:
            raise CatalogError(f"device: catalog {found.digest} is for {found.device}, not for {wanted_device}")
        if isinstance(toolchain, str) and found.toolchain != toolchain:
            raise CatalogError(f"toolchain: catalog {found.digest} is for {found.toolchain}, not for {toolchain}")
        return found

    return OpenCatalog(load, on_miss=on_miss, queue=queue)


def _device_digest(device: Any) -> str:
    digest = device.digest if isinstance(device, DeviceIdentity) else device
    if not check.is_sha256(digest):
        raise QueryError(f"device: expected a DeviceIdentity or its digest (a sha256), got {check.shown(device)}")
    return str(digest)


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
    if source is not None:
        return _sourced(origin, source, alias, role, device, toolchain, refreshing)
    if alias is None:
        names = origin.aliases()
        if len(names) != 1:
            raise (QueryError if names else NotStored)(f"alias: {origin.folder} has {names}, name one of them")
        alias = names[0]
    target = origin.alias(alias).manifest.pick(device, toolchain)
    return _promised(origin, alias, target, role)


def _sourced(
    store: Store,
    source: str,
    alias: str | None,
    role: str,
    device: str,
    toolchain: str | AnyToolchain | None,
    refreshing: bool,
) -> Snapshot:
    """What the alias of a source points to: out of the store where that is whole, else out of what is fetched."""
    from catalogs.client import Source
    from catalogs.pulling import pull

    name = Source(source).alias
    if alias is not None and alias != name:
        raise QueryError(f"alias: the source is that of {name!r}, not of {alias!r}")
    damage: CatalogError | None = None
    if not refreshing and name in store.aliases():
        try:
            manifest = store.alias(name).manifest
        except FormatError as error:
            damage = error
        else:
            target = manifest.pick(device, toolchain)
            target.digest_of(role)  # raises, where there is none: no damage
            try:
                return _promised(store, name, target, role)
            except (NotStored, FormatError) as error:
                damage = error
    try:
        pull(source, store, device=device, afresh=damage is not None)
    except (SourceError, OSError) as error:
        if damage is None and isinstance(error, SourceError):
            raise
        before = f"{damage}; fetching it again failed: " if damage is not None else ""
        raise (SourceError if isinstance(error, SourceError) else CatalogError)(f"{before}{error}") from None
    return _promised(store, name, store.alias(name).manifest.pick(device, toolchain), role)


def _promised(store: Store, alias: str, target: ManifestEntry, role: str) -> Snapshot:
    """The catalog that an alias names for a role, device and toolchain, which must be for those."""
    found = store.snapshot(target.digest_of(role))
    promised = {"role": role, "device": target.device, "toolchain": target.toolchain}
    for name, wanted in promised.items():
        if getattr(found, name) != wanted:
            raise FormatError(
                f"alias {alias!r}: names catalog {found.digest} for {name} {wanted}, but that catalog's {name} is "
                f"{getattr(found, name)}"
            )
    return found


def _forced(store: Store, source: str | None, digest: str) -> Snapshot:
    try:
        return store.snapshot(digest)
    except (NotStored, FormatError):
        if source is None:
            raise
    from catalogs.client import Source

    try:
        store.put(Source(source).catalog(digest))
    except OSError as error:
        raise CatalogError(f"catalog {digest} cannot be stored: {error}") from None
    return store.snapshot(digest)


def _file(path: Path, forced: str | None) -> Snapshot:
    """A catalog's file, whatever its name and spelling.

    It must have the digest that its name is, that its ``digest`` says or that is forced. One that is named otherwise
    and does not say its digest (a store's file, renamed) is pinned by the digest that it has.
    """
    try:
        data = path.read_bytes()
        if check.is_sha256(path.stem):
            beside = path.with_suffix(".index")
            return Snapshot.from_files(
                digest=path.stem, data=data, index=beside.read_bytes() if beside.is_file() else None
            )
    except OSError as error:
        raise CatalogError(f"{path}: {error}") from None
    document = parse_json(data, name=str(path))
    if forced is None and isinstance(document, dict) and "digest" not in document:
        forced = sha256_hex(document)
    return Snapshot.of(Catalog.from_document(document, digest=forced))

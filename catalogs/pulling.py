"""Bring an alias's catalogs from a service into a store. All that is needed is verified and stored, then it counts."""

from __future__ import annotations

from dataclasses import dataclass

from catalogs.catalog import Catalog
from catalogs.client import Source
from catalogs.device import DeviceIdentity, this_device
from catalogs.errors import CatalogError, FormatError, NotStored, QueryError, SourceError
from catalogs.manifest import Manifest, ManifestEntry
from catalogs.store import Pointer, Store


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What a pull brought."""

    alias: str
    changed: bool
    """Whether the alias points elsewhere than before."""
    digests: tuple[str, ...]
    """The device's catalogs, all of them in the store now."""
    fetched: tuple[str, ...]
    """Those of them that were not here before."""
    artifacts: tuple[str, ...]
    """sha256 of the device's compiled libraries that are in the store now (none unless asked for)."""


def pull(
    source: str | Source,
    store: Store | str,
    *,
    artifacts: bool = False,
    device: DeviceIdentity | str | None = None,
    afresh: bool = False,
) -> Pulled:
    """Fetch where an alias points and this device's catalogs (every toolchain, both roles); with ``artifacts``, the
    compiled libraries of its candidate entries too.

    ``device``: another device's identity, to fill a store for it; another CPU's libraries are refused, a GPU's are
    brought to where the identity is known (``search.jit.this_gpu()``). ``afresh``: the manifest
    is sent again even if it has not changed since, for a store whose own copy is wrong. Raises SourceError when
    the service is away or sends anything else than it promised, and NotStored when the alias has nothing for the
    device; the store then still points to the last good catalogs.
    """
    origin = Source(source) if isinstance(source, str) else source
    folder = Store(store) if isinstance(store, str) else store
    wanted = this_device().digest if device is None else device if isinstance(device, str) else device.digest
    # A GPU's code is harmless to this CPU, and a machine's GPUs are not told apart here: who loads it looks.
    gpu = isinstance(device, DeviceIdentity) and device.kind != this_device().kind
    if artifacts and wanted != this_device().digest and not gpu:
        raise QueryError(f"device: libraries built for {wanted} do not run here, on {this_device().digest}")
    before = _pointer(folder, origin.alias)
    etag = before.etag if before is not None and before.source == origin.url and not afresh else None
    answer = origin.manifest(etag=etag)
    manifest = answer.manifest
    if manifest is None:
        assert before is not None
        manifest = before.manifest
    mine = [entry for entry in manifest.entries if entry.device == wanted]
    if not mine:
        manifest.pick(wanted, None)  # raises the NotStored that says what there is
    digests, fetched, libraries = [], [], []
    for entry in mine:
        for role, digest in (("candidate", entry.digest), ("reference", entry.reference)):
            if digest is None:
                continue
            catalog = _stored(folder, digest)
            if catalog is None:
                catalog = origin.catalog(digest)
                fetched.append(digest)
            _check_promise(catalog, entry, role, origin)
            folder.put(catalog)
            digests.append(digest)
            if artifacts and role == "candidate":
                libraries += _pull_libraries(catalog, origin, folder)
    if answer.manifest is not None:
        folder.set_alias(manifest, source=origin.url, etag=answer.etag)
    return Pulled(
        alias=origin.alias,
        changed=before is None or _targets(before.manifest) != _targets(manifest),
        digests=tuple(digests),
        fetched=tuple(fetched),
        artifacts=tuple(libraries),
    )


def _pointer(store: Store, alias: str) -> Pointer | None:
    try:
        return store.alias(alias)
    except (NotStored, FormatError):  # none yet, or damaged: fetched afresh
        return None


def _stored(store: Store, digest: str) -> Catalog | None:
    try:
        return store.get(digest)
    except (NotStored, FormatError):
        return None


def _check_promise(catalog: Catalog, entry: ManifestEntry, role: str, source: Source) -> None:
    promised = {"role": role, "device": entry.device, "toolchain": entry.toolchain}
    for name, wanted in promised.items():
        if getattr(catalog, name) != wanted:
            raise SourceError(
                f"{source.url}: names catalog {catalog.digest} for {name} {wanted}, but that catalog's {name} is "
                f"{getattr(catalog, name)}"
            )


def _pull_libraries(catalog: Catalog, source: Source, store: Store) -> list[str]:
    wanted = {entry.artifact["library_sha256"] for entry in catalog.entries if entry.artifact is not None}
    for sha256 in sorted(wanted):
        try:
            store.artifact(sha256, device=catalog.device)
        except CatalogError:
            store.put_artifact(source.artifact(sha256), sha256=sha256, device=catalog.device)
    return sorted(wanted)


def _targets(manifest: Manifest) -> list[dict[str, object]]:
    return [entry.document() for entry in manifest.entries]

"""The store: a directory of catalogs that many processes share, each file named by what it holds.

::

    catalogs/<digest>.json         a catalog, one entry a line (see lines.py)
    catalogs/<digest>.index        where its entries lie; can be made again
    aliases/<alias>.json           where an alias points: its manifest, where it came from, its ETag
    artifacts/<device>/<sha256>    compiled libraries, under the identity of the device they were built for

A file is written beside its place, flushed and renamed into it: a kill in mid-write leaves what was there. Two writers
of one catalog write the same bytes; of two writers of one alias the later one counts. Nothing is ever changed in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from catalogs import fields as check
from catalogs.catalog import Catalog
from catalogs.errors import CatalogError, FormatError, NotStored
from catalogs.index import build_index
from catalogs.lines import write_lines
from catalogs.manifest import Manifest, alias_name
from catalogs.placing import place, sweep
from catalogs.sealed import seal, unseal
from catalogs.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Where an alias points, as the store remembers it."""

    manifest: Manifest
    source: str | None = None
    """The URL that it was pulled from; None: set locally."""
    etag: str | None = None


class Store:
    """One store directory. Thread-safe; makes its folders when first written to."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r})"

    def put(self, catalog: Catalog) -> str:
        """Keep a catalog; its digest. Files that are there already are left alone, unless they were damaged.

        Raises OSError when the disk refuses.
        """
        path = self._catalog_path(catalog.digest)
        lines = write_lines(catalog)
        # the index first: where the catalog is, its index is too
        for place_of, data in ((path.with_suffix(".index"), build_index(catalog, lines)), (path, lines.data)):
            if not _has(place_of, data):
                place(place_of, data)
        sweep(path.parent)
        return catalog.digest

    def get(self, digest: str) -> Catalog:
        """A catalog with every entry parsed and checked. Raises NotStored, or FormatError when it was damaged."""
        return Catalog.from_bytes(self._read(digest), digest=digest, name=f"catalog {digest}")

    def snapshot(self, digest: str) -> Snapshot:
        """A catalog for lookups: verified by its digest, entries parsed when asked for. Raises as :meth:`get` does."""
        data = self._read(digest)
        index = None
        with contextlib.suppress(OSError):
            index = self._catalog_path(digest).with_suffix(".index").read_bytes()
        return Snapshot.from_files(digest=digest, data=data, index=index)

    def digests(self) -> list[str]:
        """The digests of the catalogs in the store, sorted; nothing is verified."""
        names = (path.stem for path in (self.folder / "catalogs").glob("*.json"))
        return sorted(name for name in names if check.is_sha256(name))

    def set_alias(self, manifest: Manifest, *, source: str | None = None, etag: str | None = None) -> None:
        """Point the manifest's alias where it says. The catalogs should be here already: put them first."""
        document = {"manifest": manifest.document(), "source": source, "etag": etag}
        path = self._alias_path(manifest.alias)
        place(path, seal(document))
        sweep(path.parent)

    def alias(self, name: str) -> Pointer:
        """Where an alias points. Raises NotStored, or FormatError when its file was damaged."""
        path = self._alias_path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotStored(f"alias {name!r} is not in {self.folder}; it has {self.aliases()}") from None
        except OSError as error:
            raise CatalogError(f"alias {name!r} cannot be read: {error}") from None
        document = check.an_object(unseal(data, name=f"alias {name!r}"), "alias")
        manifest = Manifest.from_document(document.get("manifest"))
        if manifest.alias != name:
            raise FormatError(f"alias {name!r}: its file holds the manifest of {manifest.alias!r}")
        said = {member: document.get(member) for member in ("source", "etag")}
        for member, value in said.items():
            if value is not None:
                check.a_text(value, f"alias {name!r}: {member}")
        return Pointer(manifest=manifest, **said)

    def aliases(self) -> list[str]:
        """The names of the aliases in the store, sorted."""
        return sorted(path.stem for path in (self.folder / "aliases").glob("[!.]*.json"))

    def put_artifact(self, data: bytes, *, sha256: str, device: str) -> Path:
        """Keep a compiled library for a device (identity digest); its path. Raises FormatError for other bytes."""
        path = self._artifact_path(sha256, device)
        actual = hashlib.sha256(data).hexdigest()
        if actual != sha256:
            raise FormatError(f"artifact {sha256}: these bytes have the sha256 {actual}")
        if not _has(path, data):
            place(path, data)
            sweep(path.parent)
        return path

    def artifact(self, sha256: str, *, device: str) -> Path:
        """The library of that sha256 that was built for that device, verified.

        Raises NotStored (it names the other device when the library is here for another one only), or FormatError when
        it was damaged.
        """
        path = self._artifact_path(sha256, device)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            others = sorted(other.parent.name for other in (self.folder / "artifacts").glob(f"*/{sha256}"))
            hint = f"; it is here for device {others}, and this is another one" if others else ""
            raise NotStored(f"artifact {sha256} for device {device} is not in {self.folder}{hint}") from None
        except OSError as error:
            raise CatalogError(f"artifact {sha256} cannot be read: {error}") from None
        actual = hashlib.sha256(data).hexdigest()
        if actual != sha256:
            raise FormatError(f"artifact {sha256}: the file's sha256 is {actual}: it was damaged or edited")
        return path

    def _read(self, digest: str) -> bytes:
        try:
            return self._catalog_path(digest).read_bytes()
        except FileNotFoundError:
            raise NotStored(f"catalog {digest} is not in {self.folder}") from None
        except OSError as error:
            raise CatalogError(f"catalog {digest} cannot be read: {error}") from None

    def _catalog_path(self, digest: str) -> Path:
        return self.folder / "catalogs" / f"{check.a_sha256(digest, 'digest')}.json"

    def _alias_path(self, name: str) -> Path:
        return self.folder / "aliases" / f"{alias_name(name)}.json"

    def _artifact_path(self, sha256: str, device: str) -> Path:
        return self.folder / "artifacts" / check.a_sha256(device, "device") / check.a_sha256(sha256, "artifact")


def _has(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False

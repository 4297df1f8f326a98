"""The Catalog: frozen winners of one device and one toolchain, under one digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from catalogs import fields as check
from catalogs.canonical import canonical_json, parse_json
from catalogs.device import DeviceIdentity
from catalogs.errors import FormatError
from catalogs.format import SCHEMA_VERSION, Entry
from catalogs.kernels import KernelRow, params_text
from catalogs.winner import a_complete_winner

ROLES = ("candidate", "reference")
_REQUIRED = ("schema_version", "role", "device", "toolchain", "kernels", "entries")
_OPTIONAL = ("device_identity", "toolchain_description")


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """An immutable set of entries, no two with one key. Made by ``freeze``, ``from_bytes`` or ``from_document``."""

    role: str
    """``candidate``: what was chosen; ``reference``: the best that reloads its inputs."""
    device: str
    """Device identity digest of every entry."""
    toolchain: str
    """Toolchain fingerprint of every entry."""
    kernels: tuple[KernelRow, ...]
    entries: tuple[Entry, ...]
    """In canonical order: by kernel, then by the canonical JSON of the key."""
    device_identity: Mapping[str, Any] | None = None
    """``{"kind", "identity"}`` that ``device`` is the digest of."""
    toolchain_description: Mapping[str, Any] | None = None
    """What ``toolchain`` is the sha256 of."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of the document without its ``digest``."""
        known: str | None = self.__dict__.get("_digest")
        if known is None:
            known = hashlib.sha256(canonical_json(self.undigested())).hexdigest()
            self.__dict__["_digest"] = known  # worked out once: the catalog cannot change
        return known

    def header(self) -> dict[str, Any]:
        """Every member but ``digest`` and ``entries``."""
        members: dict[str, Any] = {
            "schema_version": self.schema_version,
            "role": self.role,
            "device": self.device,
            "toolchain": self.toolchain,
            "kernels": [row.document() for row in self.kernels],
        }
        members |= {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None}
        return {**self.extra, **members}

    def undigested(self) -> dict[str, Any]:
        """What the digest is taken over."""
        return {**self.header(), "entries": [entry.document() for entry in self.entries]}

    def document(self) -> dict[str, Any]:
        """JSON form, ``digest`` included."""
        return {**self.undigested(), "digest": self.digest}

    @classmethod
    def from_bytes(cls, data: bytes, *, digest: str | None = None, name: str = "catalog") -> Catalog:
        """The catalog that JSON bytes hold, in any spelling; see :meth:`from_document`."""
        return cls.from_document(parse_json(data, name=name), digest=digest)

    @classmethod
    def from_document(cls, document: Any, *, digest: str | None = None) -> Catalog:
        """Inverse of :meth:`document`, after every check: versions, types, order, duplicates, one device, digest.

        ``digest`` is the one that the caller knows it by; without it the document must carry its own. Raises
        FormatError naming the field. Members that this version does not know stay part of the digest.
        """
        check.an_object(document, "catalog")
        check.all_present(document, _REQUIRED, "")
        check.a_known_version(document["schema_version"], "schema_version", SCHEMA_VERSION)
        check.a_word(document["role"], "role", ROLES)
        check.a_sha256(document["device"], "device")
        check.a_sha256(document["toolchain"], "toolchain")
        rows = check.a_list(document["kernels"], "kernels")
        kernels = tuple(KernelRow.from_document(row, path=f"kernels[{n}]") for n, row in enumerate(rows))
        found = check.a_list(document["entries"], "entries")
        entries = tuple(Entry.from_document(entry, path=f"entries[{n}]") for n, entry in enumerate(found))
        _check_descriptions(document)
        catalog = cls(
            role=document["role"],
            device=document["device"],
            toolchain=document["toolchain"],
            kernels=kernels,
            entries=entries,
            schema_version=document["schema_version"],
            extra={k: v for k, v in document.items() if k not in (*_REQUIRED, *_OPTIONAL, "digest")},
            **{name: document[name] for name in _OPTIONAL if name in document},
        )
        _check_kernels(kernels)
        _check_entries(catalog, found)
        _check_digest(catalog, document.get("digest"), digest)
        return catalog


def entry_order(entry: Entry) -> tuple[str, bytes]:
    """What entries are sorted by."""
    return entry.kernel, canonical_json(entry.key.document())


def _check_descriptions(document: Mapping[str, Any]) -> None:
    if "device_identity" in document:
        described = check.an_object(document["device_identity"], "device_identity")
        check.a_text(described.get("kind"), "device_identity.kind")
        check.an_object(described.get("identity"), "device_identity.identity")
        identity = DeviceIdentity(kind=described["kind"], identity=described["identity"])
        if dict(described) != {"kind": identity.kind, "identity": identity.identity}:
            check.refuse("device_identity", described, "kind and identity, and nothing else")
        if identity.digest != document["device"]:
            raise FormatError(f"device: {document['device']} is not the digest of device_identity, {identity.digest}")
    if "toolchain_description" in document:
        described = check.an_object(document["toolchain_description"], "toolchain_description")
        fingerprint = hashlib.sha256(_canonical(described)).hexdigest()
        if fingerprint != document["toolchain"]:
            raise FormatError(
                f"toolchain: {document['toolchain']} is not the sha256 of toolchain_description, {fingerprint}"
            )


def _check_kernels(kernels: tuple[KernelRow, ...]) -> None:
    for position in range(1, len(kernels)):
        before, row = kernels[position - 1].order, kernels[position].order
        if before == row:
            raise FormatError(f"kernels[{position}]: kernel {row[0]!r} with params {row[1]} is listed twice")
        if before > row:
            raise FormatError(f"kernels[{position}]: out of order (rows are sorted by name, then params)")
    programs: dict[str, int] = {}
    for position, kernel in enumerate(kernels):
        first = programs.setdefault(kernel.program_digest, position)
        if first != position:
            raise FormatError(
                f"kernels[{position}].program_digest: {kernel.name!r} is the same program as kernels[{first}], "
                f"{kernels[first].name!r}; in a catalog a program has one name"
            )


def _check_entries(catalog: Catalog, documents: list[Any]) -> None:
    rows = {row.order: row for row in catalog.kernels}
    before: tuple[str, bytes] | None = None
    for position, entry in enumerate(catalog.entries):
        path = f"entries[{position}]"
        if entry.document() != documents[position]:
            raise FormatError(f"{path}: has empty optional members, or leaves out key fields; write it in full")
        row = rows.get((entry.kernel, params_text(entry.params)))
        if row is None:
            raise FormatError(f"{path}.kernel: {entry.kernel!r} with params {dict(entry.params)} is not in kernels")
        same = (
            ("program_digest", row.program_digest),
            ("device", catalog.device),
            ("toolchain", catalog.toolchain),
        )
        for name, wanted in same:
            if getattr(entry.key, name) != wanted:
                check.refuse(f"{path}.key.{name}", getattr(entry.key, name), f"the catalog's, {wanted}")
        if set(entry.key.dims) != set(row.dims):
            check.refuse(f"{path}.key.dims", sorted(entry.key.dims), f"the kernel's dims {list(row.dims)}")
        if set(entry.key.dtypes) != set(row.dtypes):
            check.refuse(f"{path}.key.dtypes", sorted(entry.key.dtypes), f"the kernel's tensors {sorted(row.dtypes)}")
        a_complete_winner(documents[position], path)
        check.a_sha256(entry.samples_sha256, f"{path}.samples_sha256")
        if not entry.median_seconds > 0:
            check.refuse(f"{path}.median_seconds", entry.median_seconds, "a positive number of seconds")
        order = entry_order(entry)
        if before is not None and order <= before:
            _refuse_order(catalog.entries[position - 1], entry, path, same_key=order == before)
        before = order


def _refuse_order(before: Entry, entry: Entry, path: str, *, same_key: bool) -> None:
    if same_key:
        raise FormatError(
            f"{path}.key: the same key as the entry before it (job {before.job_id}, trial {before.trial_id}; here job "
            f"{entry.job_id}, trial {entry.trial_id})"
        )
    raise FormatError(f"{path}: out of order (entries are sorted by kernel, then by the canonical JSON of the key)")


def _check_digest(catalog: Catalog, stated: Any, known: str | None) -> None:
    if stated is None and known is None:
        raise FormatError("digest: missing, and none was given to check the catalog by")
    try:
        actual = catalog.digest
    except ValueError as error:  # text that UTF-8 cannot hold
        raise FormatError(f"catalog: cannot be written as JSON ({error})") from None
    if stated is not None and stated != actual:
        raise FormatError(f"digest: {check.shown(stated)} is stated, but the catalog's is {actual}: it was edited")
    if known is not None and known != actual:
        raise FormatError(f"digest: asked for {known}, but the catalog's is {actual}")


def _canonical(document: Any) -> bytes:
    try:
        return canonical_json(document)
    except ValueError as error:
        raise FormatError(f"catalog: cannot be written as JSON ({error})") from None

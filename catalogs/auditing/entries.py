"""The three catalogs inside a bundle: each is whole, and is the catalog of this device and toolchain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.auditing.book import Book, same, shown
from catalogs.auditing.reading import check_digest, device_digest, digest
from catalogs.auditing.shapes import CATALOG, CATALOGS, DEVICE_IDENTITY, ENTRY_DIGESTS
from catalogs.canonical import canonical_json
from catalogs.errors import FormatError
from catalogs.format import SCHEMA_VERSION, Entry


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A catalog as it stands in the bundle."""

    device: str
    toolchain: str
    entries: Mapping[str, Entry]
    """Key digest → entry, in the catalog's order."""

    def beside(self, entry: Entry) -> Entry | None:
        """The entry of the same key, or else of the key that differs in the toolchain alone."""
        exact = self.entries.get(entry.key.digest)
        if exact is not None:
            return exact
        wanted = {**entry.key.document(), "toolchain": self.toolchain}
        return next((other for other in self.entries.values() if same(other.key.document(), wanted)), None)


@dataclass(frozen=True, kw_only=True)
class FrozenSet:
    """Candidate and reference as far as they could be read; no incumbent is a fact, not a fault."""

    candidate: Frozen | None = None
    reference: Frozen | None = None
    incumbent: Frozen | None = None


def read_catalogs(document: Any, book: Book) -> FrozenSet:
    """The catalogs of a bundle, every member checked that a replay relies on."""
    if not book.fits("catalogs", document, CATALOGS):
        return FrozenSet()
    found = FrozenSet(
        candidate=_read(document["candidate"], "catalogs.candidate", "candidate", book),
        reference=_read(document["reference"], "catalogs.reference", "reference", book),
        incumbent=_read(document["incumbent"], "catalogs.incumbent", "candidate", book)
        if document["incumbent"] is not None
        else None,
    )
    if found.candidate and found.reference:
        for mine, other, names in (
            (found.candidate, found.reference, ("candidate", "reference")),
            (found.reference, found.candidate, ("reference", "candidate")),
        ):
            for key in mine.entries.keys() - other.entries.keys():
                where = f"catalogs.{names[1]}"
                book.find(where, f"no entry for {entry_name(mine.entries[key])}, which catalogs.{names[0]} has")
    return found


def check_scope(found: FrozenSet, scope: Mapping[str, Any], book: Book) -> None:
    """That the catalogs are of the bundle's device, toolchain, threads and cache context."""
    device, toolchain = scope["device"]["digest"], scope["toolchain_fingerprint"]
    for name in ("candidate", "reference", "incumbent"):
        catalog: Frozen | None = getattr(found, name)
        if catalog is None:
            continue
        where = f"catalogs.{name}"
        book.equal(where, "device", catalog.device, device, "the scope's device digest")
        if name != "incumbent":
            book.equal(where, "toolchain", catalog.toolchain, toolchain, "the scope's toolchain fingerprint")
        for entry in catalog.entries.values():
            of = f"{where} entry {entry_name(entry)}"
            book.equal(of, "key.threads", entry.key.threads, scope["threads"], "the scope's threads")
            book.equal(of, "key.cache_context", entry.key.cache_context, scope["cache_context"], "the scope's")
            book.equal(of, "key.metric", entry.key.metric, "device_batch", "the metric that selects")


def entry_name(entry: Entry) -> str:
    """An entry as messages call it."""
    dims = ", ".join(f"{name}:{extent}" for name, extent in entry.key.dims.items())
    return shown(f"{entry.kernel} {dims} (trial {entry.trial_id})")


def _read(document: Any, where: str, role: str, book: Book) -> Frozen | None:
    version = document.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        book.find(
            where, f"{shown(version)} is newer than this auditor reads ({SCHEMA_VERSION})", field="schema_version"
        )
        return None
    if not book.fits(where, document, CATALOG):
        return None
    book.checked["catalogs"] += 1
    check_digest(document, "digest", where, book)
    book.equal(where, "role", document["role"], role, "the role of this catalog")
    described = document.get("toolchain_description")
    if described is not None:
        book.equal(where, "toolchain", document["toolchain"], digest(described), "that of toolchain_description")
    described = document.get("device_identity")
    if described is not None and book.fits(where, {"device_identity": described}, DEVICE_IDENTITY):
        actual = device_digest(described["kind"], described["identity"])
        book.equal(where, "device", document["device"], actual, "that of device_identity")
    entries = _entries(document, where, book)
    return Frozen(device=document["device"], toolchain=document["toolchain"], entries=entries)


def _entries(document: Mapping[str, Any], where: str, book: Book) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    orders = []
    for position, written in enumerate(document["entries"]):
        at = f"{where}.entries[{position}]"
        try:
            entry = Entry.from_document(written)
        except (FormatError, ArithmeticError) as error:  # an integer may be too large for any float
            book.find(at, str(error))
            continue
        book.checked["catalog entries"] += 1
        key = entry.key.digest
        orders.append((entry.kernel, canonical_json(entry.key.document())))
        if key in entries:
            book.find(at, f"the same key as another entry, {entry_name(entries[key])}", field="key")
            continue
        entries[key] = entry
        book.equal(at, "key.device", entry.key.device, document["device"], "the catalog's device")
        book.equal(at, "key.toolchain", entry.key.toolchain, document["toolchain"], "the catalog's toolchain")
        book.fits(at, {"samples_sha256": entry.samples_sha256}, ENTRY_DIGESTS)
        if "numerics" in entry.code:
            book.equal(at, "numerics", dict(entry.numerics), entry.code["numerics"], "that of its code")
        if entry.trial_id not in entry.tie_set:
            book.find(at, f"the winner, {shown(entry.trial_id)}, is not in it", field="tie_set")
        rows = [
            row
            for row in document["kernels"]
            if row["name"] == entry.kernel and same(row["params"], dict(entry.params))
        ]
        if [row["program_digest"] for row in rows] != [entry.key.program_digest]:
            book.find(at, "not the program that the catalog's kernels have under this name", field="key.program_digest")
    if orders != sorted(orders):
        book.find(where, "the entries are not in canonical order", field="entries")
    return entries

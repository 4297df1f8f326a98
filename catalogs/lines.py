"""How a catalog lies on disk: its canonical JSON with one entry a line, so that tools for lines and for JSON read it.

::

    {"device":"…","entries":[
    {…first entry…},
    {…last entry…}
    ],"kernels":[…],"role":"candidate","schema_version":1,"toolchain":"…"}

Canonical JSON has no newline of its own, so the digest is the sha256 of the file without its newlines
(``tr -d '\\n' < FILE | sha256sum``): it is checked without parsing an entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from catalogs.canonical import canonical_json
from catalogs.catalog import Catalog

SEPARATOR = b",\n"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The bytes of a catalog's file, and where each entry lies in it."""

    data: bytes
    spans: tuple[tuple[int, int], ...]
    """(offset, length) in bytes of each entry, in the catalog's order."""


def write_lines(catalog: Catalog) -> Lines:
    """The file of a catalog."""
    header = catalog.header()
    before = canonical_json({name: header[name] for name in header if name < "entries"})
    after = canonical_json({name: header[name] for name in header if name > "entries"})
    head = before[:-1] + b',"entries":[\n'
    closing = b"]," + after[1:]
    entries = [canonical_json(entry.document()) for entry in catalog.entries]
    spans = []
    offset = len(head)
    for entry in entries:
        spans.append((offset, len(entry)))
        offset += len(entry) + len(SEPARATOR)
    body = SEPARATOR.join(entries) + (b"\n" if entries else b"")
    return Lines(data=head + body + closing, spans=tuple(spans))


def digest_of(data: bytes) -> str:
    """The digest of the catalog that a file holds, if it holds one."""
    hasher = hashlib.sha256()
    for chunk in _chunks(data):
        hasher.update(chunk.replace(b"\n", b""))
    return hasher.hexdigest()


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]

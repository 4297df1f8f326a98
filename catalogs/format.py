"""Canonical JSON, digests, and the Entry: one frozen winner with everything needed to explain and rebuild it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.errors import FormatError
from catalogs.key import LookupKey

SCHEMA_VERSION = 1
"""Readers accept entries of their own version and older; a newer one is refused by number."""


def canonical_json(document: Any) -> bytes:
    """The one byte string of a JSON document: sorted keys, no spaces, UTF-8, shortest floats, no NaN or infinity.

    Raises ValueError on values that JSON does not have.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(document: Any) -> str:
    """sha256 (hex) of the canonical JSON of a document."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A winner: its key, the complete candidate, plan and code facts, and where the evidence is."""

    key: LookupKey
    kernel: str
    params: Mapping[str, float | int]
    candidate: Mapping[str, Any]
    plan: Mapping[str, Any]
    code: Mapping[str, Any]
    protocol: Mapping[str, Any]
    numerics: Mapping[str, Any]
    median_seconds: float
    samples_sha256: str
    tie_set: tuple[str, ...]
    job_id: str
    trial_id: str

    def document(self) -> dict[str, Any]:
        """JSON form; its canonical bytes give :attr:`digest`."""
        fields = dict(vars(self))
        fields["key"] = self.key.document()
        fields["tie_set"] = list(self.tie_set)
        return {"schema_version": SCHEMA_VERSION, "metric": self.key.metric, **fields}

    @property
    def digest(self) -> str:
        """sha256 (hex) of the entry's canonical JSON."""
        return sha256_hex(self.document())

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Entry:
        """Inverse of :meth:`document`. Raises FormatError naming the field that is missing or too new."""
        version = document.get("schema_version")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise FormatError(f"schema_version: {version!r} is not one this version reads (up to {SCHEMA_VERSION})")
        fields = {}
        for name in cls.__dataclass_fields__:
            if name not in document:
                raise FormatError(f"{name}: missing from the entry")
            fields[name] = document[name]
        fields["key"] = LookupKey.from_document(fields["key"])
        fields["tie_set"] = tuple(fields["tie_set"])
        return cls(**fields)

"""The manifest of an alias: which catalog each device and toolchain gets. One alias serves a mixed fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs import fields as check
from catalogs.canonical import parse_json
from catalogs.errors import FormatError, NotStored, QueryError
from catalogs.format import SCHEMA_VERSION
from catalogs.key import ANY_TOOLCHAIN, AnyToolchain

_ALIAS = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class ManifestEntry:
    """The catalogs of one device with one toolchain."""

    device: str
    toolchain: str
    digest: str
    """Of the candidate catalog."""
    reference: str | None = None
    """Of the reference catalog that was frozen with it."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return dict(vars(self))

    def digest_of(self, role: str) -> str:
        """The digest of the catalog in that role. Raises NotStored when there is none."""
        digest = self.digest if role == "candidate" else self.reference
        if digest is None:
            raise NotStored(f"no {role} catalog for device {self.device}, toolchain {self.toolchain}")
        return digest


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Where an alias points, newest promotion first, and where it pointed before."""

    alias: str
    entries: tuple[ManifestEntry, ...]
    history: tuple[Mapping[str, Any], ...] = ()
    """Earlier states, newest first: ``{"promoted_at", "entries"}``. For people; lookups do not read it."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "alias": self.alias,
            "schema_version": SCHEMA_VERSION,
            "entries": [entry.document() for entry in self.entries],
            "history": [dict(state) for state in self.history],
        }

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Manifest:
        """The manifest that JSON bytes hold; see :meth:`from_document`."""
        return cls.from_document(parse_json(data, name=name))

    @classmethod
    def from_document(cls, document: Any) -> Manifest:
        """Inverse of :meth:`document`. Raises FormatError naming the field; unknown members are ignored."""
        check.an_object(document, "manifest")
        check.all_present(document, ("alias", "schema_version", "entries"), "")
        check.a_known_version(document["schema_version"], "schema_version", SCHEMA_VERSION)
        alias_name(document["alias"])
        entries: dict[tuple[str, str], ManifestEntry] = {}
        for position, stated in enumerate(check.a_list(document["entries"], "entries")):
            path = f"entries[{position}]"
            check.an_object(stated, path)
            check.all_present(stated, ("device", "toolchain", "digest"), path)
            members = {
                name: check.a_sha256(stated[name], f"{path}.{name}") for name in ("device", "toolchain", "digest")
            }
            if stated.get("reference") is not None:
                members["reference"] = check.a_sha256(stated["reference"], f"{path}.reference")
            entry = ManifestEntry(**members)
            if entries.setdefault((entry.device, entry.toolchain), entry) is not entry:
                raise FormatError(f"{path}: device {entry.device} with toolchain {entry.toolchain} is listed twice")
        history = check.a_list(document.get("history", []), "history")
        for position, state in enumerate(history):
            check.an_object(state, f"history[{position}]")
        return cls(alias=document["alias"], entries=tuple(entries.values()), history=tuple(history))

    def pick(self, device: str, toolchain: str | AnyToolchain | None) -> ManifestEntry:
        """The catalogs of a device.

        ``toolchain``: a fingerprint, ``ANY_TOOLCHAIN`` (the newest promotion), or None, which will do where the device
        has one toolchain only. Raises NotStored when nothing fits and QueryError when a toolchain must be named.
        """
        mine = [entry for entry in self.entries if entry.device == device]
        if not mine:
            others = sorted({entry.device for entry in self.entries})
            raise NotStored(f"alias {self.alias!r} has no catalog for device {device}; it has some for {others}")
        if toolchain is None and len(mine) > 1:
            names = [entry.toolchain for entry in mine]
            raise QueryError(f"toolchain: alias {self.alias!r} has several for this device, name one of {names}")
        if toolchain is None or toolchain is ANY_TOOLCHAIN:
            return mine[0]
        for entry in mine:
            if entry.toolchain == toolchain:
                return entry
        names = [entry.toolchain for entry in mine]
        raise NotStored(f"alias {self.alias!r} has no catalog for toolchain {toolchain}; this device has {names}")


def alias_name(value: Any) -> str:
    """A name that is safe as a file name and in a URL. Raises FormatError for any other."""
    if not isinstance(value, str) or not _ALIAS.fullmatch(value):
        check.refuse("alias", value, "1 to 64 of a-z 0-9 . _ - with a letter or digit first")
    return value

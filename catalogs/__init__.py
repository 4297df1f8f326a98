"""What JIT code imports: frozen catalogs and exact lookup. Standard library only, and nothing read at import."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from catalogs.canonical import canonical_json, sha256_hex
from catalogs.errors import (
    CatalogConflict,
    CatalogError,
    FormatError,
    MissError,
    NotStored,
    QueryError,
    SourceError,
)
from catalogs.format import SCHEMA_VERSION, Entry
from catalogs.key import ANY_TOOLCHAIN, AnyToolchain, LookupKey
from catalogs.lookup import Hit, Miss, NearMiss, Query, lookup

if TYPE_CHECKING:
    from catalogs.bound import BoundLookup
    from catalogs.catalog import Catalog
    from catalogs.device import DeviceIdentity, this_device
    from catalogs.freezing import freeze
    from catalogs.kernels import KernelRow
    from catalogs.manifest import Manifest, ManifestEntry
    from catalogs.opened import OpenCatalog
    from catalogs.opening import open_catalog
    from catalogs.pulling import Pulled, pull
    from catalogs.store import Pointer, Store

    open = open_catalog  # noqa: A001 - catalogs.open is the word that people expect

_LATER = {
    "BoundLookup": "catalogs.bound",
    "Catalog": "catalogs.catalog",
    "DeviceIdentity": "catalogs.device",
    "KernelRow": "catalogs.kernels",
    "Manifest": "catalogs.manifest",
    "ManifestEntry": "catalogs.manifest",
    "OpenCatalog": "catalogs.opened",
    "Pointer": "catalogs.store",
    "Pulled": "catalogs.pulling",
    "Store": "catalogs.store",
    "freeze": "catalogs.freezing",
    "open": "catalogs.opening",
    "pull": "catalogs.pulling",
    "this_device": "catalogs.device",
}
"""Imported when first used, so that importing the package stays cheap (``pull`` alone brings an HTTP client)."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    value = globals()[name] = getattr(module, "open_catalog" if name == "open" else name)
    return value


# without ``open``: ``from catalogs import *`` must leave the built-in alone
__all__ = [
    "ANY_TOOLCHAIN",
    "SCHEMA_VERSION",
    "AnyToolchain",
    "BoundLookup",
    "Catalog",
    "CatalogConflict",
    "CatalogError",
    "DeviceIdentity",
    "Entry",
    "FormatError",
    "Hit",
    "KernelRow",
    "LookupKey",
    "Manifest",
    "ManifestEntry",
    "Miss",
    "MissError",
    "NearMiss",
    "NotStored",
    "OpenCatalog",
    "Pointer",
    "Pulled",
    "Query",
    "QueryError",
    "SourceError",
    "Store",
    "canonical_json",
    "freeze",
    "lookup",
    "pull",
    "sha256_hex",
    "this_device",
]

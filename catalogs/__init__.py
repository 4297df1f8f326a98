"""What JIT code imports: keys, entries and exact lookup. Standard library only."""

from catalogs.device import DeviceIdentity, this_device
from catalogs.errors import CatalogError, FormatError, QueryError
from catalogs.format import SCHEMA_VERSION, Entry, canonical_json, sha256_hex
from catalogs.key import ANY_TOOLCHAIN, AnyToolchain, LookupKey
from catalogs.lookup import Hit, Miss, NearMiss, Query, lookup

__all__ = [
    "ANY_TOOLCHAIN",
    "SCHEMA_VERSION",
    "AnyToolchain",
    "CatalogError",
    "DeviceIdentity",
    "Entry",
    "FormatError",
    "Hit",
    "LookupKey",
    "Miss",
    "NearMiss",
    "Query",
    "QueryError",
    "canonical_json",
    "lookup",
    "sha256_hex",
    "this_device",
]

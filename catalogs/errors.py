"""Exceptions of the catalogs package.

::

    CatalogError
    ├── FormatError   a document is not a catalog, entry or key that this version reads
    └── QueryError    a lookup was asked with fields that no key can have
"""

from __future__ import annotations


class CatalogError(Exception):
    """Root of every exception that this package raises on purpose."""


class FormatError(CatalogError):
    """A document is not what it claims to be; the message names the field."""


class QueryError(CatalogError):
    """A lookup was asked with fields that no key can have; the message names the field."""

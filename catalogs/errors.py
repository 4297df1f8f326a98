"""Exceptions of the catalogs package.

::

    CatalogError
    ├── FormatError      a document is not a catalog, entry, key or manifest that this version reads
    ├── QueryError       a lookup, or an ``open``, was asked with words that nothing can have
    ├── CatalogConflict  two entries with one key and different winners
    ├── MissError        a lookup missed, and ``on_miss="raise"`` was asked for
    ├── NotStored        the local store does not hold what was asked for
    └── SourceError      the service is away, or what it sent is not what it promised
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catalogs.lookup import Miss


class CatalogError(Exception):
    """Root of every exception that this package raises on purpose."""


class FormatError(CatalogError):
    """A document is not what it claims to be; the message names the field."""


class QueryError(CatalogError):
    """A lookup was asked with fields that no key can have; the message names the field."""


class CatalogConflict(CatalogError):  # noqa: N818 - the conflict is the fact, as in an HTTP 409
    """Two entries have one key and different winners; the message names both jobs and trials."""


class MissError(CatalogError):
    """No entry has the asked key; ``miss`` explains it."""

    def __init__(self, miss: Miss) -> None:
        super().__init__(miss)
        self.miss = miss

    def __str__(self) -> str:
        return self.miss.reason


class NotStored(CatalogError):  # noqa: N818 - reads as the fact it states
    """The local store does not hold what was asked for; the message says what it holds."""


class SourceError(CatalogError):
    """The service is away, or what it sent is not what it promised. The last good snapshot is still in the store."""

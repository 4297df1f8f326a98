"""The entries that a lookup goes through where a frozen catalog is asked."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy.orm import Session

from catalogs import Catalog
from catalogs.fields import is_sha256
from catalogs.format import Entry
from catalogs.key import ANY_TOOLCHAIN
from catalogs.lookup import Query
from tuner_service.db.queries.catalogs import catalog_row
from tuner_service.jobs.promote import check_alias, manifest_of


def frozen_entries(session: Session, catalog: str, query: Query, *, pointer: str) -> list[Entry]:
    """Entries of the catalogs that a digest or an alias names; of an alias, those of the asked device and toolchain.

    NotFound for an unknown digest or alias, InvalidInput (at ``pointer``) for a word that is neither.
    """
    if is_sha256(catalog):
        digests = [catalog]
    else:
        manifest = manifest_of(session, check_alias(catalog, pointer=f"{pointer}/catalog"))
        digests = [
            entry.digest
            for entry in manifest.entries
            if entry.device == query.key.device and query.toolchain in (ANY_TOOLCHAIN, entry.toolchain)
        ]
    return [entry for digest in digests for entry in _frozen(digest, catalog_row(session, digest)["body"]).entries]


@lru_cache(maxsize=16)
def _frozen(digest: str, body: str) -> Catalog:
    """A stored catalog. Remembered: reading and checking one takes much longer than a lookup."""
    return Catalog.from_bytes(body.encode(), digest=digest)

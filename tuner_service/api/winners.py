"""Exact lookup of winners: which query is asked, and which entries a frozen catalog has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from sqlalchemy.orm import Session

from catalogs import Catalog
from catalogs.format import Entry
from catalogs.key import ANY_TOOLCHAIN, AnyToolchain
from catalogs.lookup import Query
from search.device.spec import DeviceSpec
from search.errors import InvalidInput, Problem
from search.program.resolve import resolve_case
from search.selection.freeze import lookup_key
from tuner_service.api.query import parse_pairs
from tuner_service.db.queries.catalogs import catalog_row
from tuner_service.jobs.opening import STORED_LIMITS
from tuner_service.jobs.promote import check_alias, manifest_of

ANY_WORD = "any"
_HEX_DIGITS = frozenset("0123456789abcdef")


def build_query(
    *,
    kernel: str,
    dims: str,
    dtypes: str,
    params: str,
    device: str | None,
    toolchain: str | None,
    devices: Mapping[str, DeviceSpec],
) -> Query:
    """The lookup that query parameters ask for. Params and dtypes that are left out take the kernel's defaults.

    ``device``: id, kind, or identity digest; ``toolchain``: fingerprint or ``any``. Left out, each is that of the
    one attached device. Raises InvalidInput naming the query parameters.
    """
    document = {
        "kernel": kernel,
        "dims": _numbers(dims, name="dims"),
        "params": _numbers(params, name="params"),
        "dtypes": parse_pairs(dtypes, name="dtypes"),
    }
    case = resolve_case(document, pointer="/query", limits=STORED_LIMITS)
    identity, fingerprint = _device(device, devices)
    return Query(
        kernel=case.kernel,
        params=dict(case.params),
        key=lookup_key(case, device=identity, toolchain=""),
        toolchain=_toolchain(toolchain, fingerprint),
    )


def frozen_entries(session: Session, catalog: str, query: Query) -> list[Entry]:
    """Entries of the catalogs that a digest or an alias names; of an alias, those of the asked device and toolchain.

    NotFound for an unknown digest or alias, InvalidInput for a word that is neither.
    """
    if _is_digest(catalog):
        digests = [catalog]
    else:
        manifest = manifest_of(session, check_alias(catalog, pointer="/query/catalog"))
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


def _numbers(text: str, *, name: str) -> dict[str, int | float]:
    numbers: dict[str, int | float] = {}
    for key, value in parse_pairs(text, name=name).items():
        try:
            numbers[key] = int(value) if value.lstrip("-").isdecimal() and len(value) <= 20 else float(value)
        except ValueError:
            numbers[key] = math.nan
        if not math.isfinite(numbers[key]):
            problem = Problem(
                field=f"/query/{name}/{key}", value=value, message="not a number", allowed="a finite number"
            )
            raise InvalidInput([problem])
    return numbers


def _device(asked: str | None, devices: Mapping[str, DeviceSpec]) -> tuple[str, str | None]:
    """Identity digest, and the toolchain fingerprint when the device is attached."""
    matching = [d for d in devices.values() if asked in (None, d.id, d.kind, d.identity_digest)]
    if len({d.identity_digest for d in matching}) == 1:
        return matching[0].identity_digest, matching[0].toolchain_fingerprint
    if asked is not None and not matching and _is_digest(asked):
        return asked, None
    message = "several attached devices match; name one by id" if matching else "no such device is attached"
    allowed = sorted({d.id for d in devices.values()} | {d.kind for d in devices.values()})
    raise InvalidInput(
        [Problem(field="/query/device", value=asked, message=message, allowed=[*allowed, "an identity digest"])]
    )


def _toolchain(asked: str | None, attached: str | None) -> str | AnyToolchain:
    if asked == ANY_WORD:
        return ANY_TOOLCHAIN
    if asked is not None and _is_digest(asked):
        return asked
    if asked is None and attached is not None:
        return attached
    message = "this is not a toolchain" if asked is not None else "the device is not attached, so name a toolchain"
    allowed = [*([attached] if attached else []), ANY_WORD, "a fingerprint: 64 hexadecimal digits"]
    raise InvalidInput([Problem(field="/query/toolchain", value=asked, message=message, allowed=allowed)])


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= _HEX_DIGITS

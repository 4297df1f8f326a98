"""From the winners of finished jobs to a catalog. Pure, and the same catalog whenever it is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from catalogs.canonical import canonical_json, sha256_hex
from catalogs.catalog import Catalog, entry_order
from catalogs.device import DeviceIdentity
from catalogs.errors import CatalogConflict, FormatError
from catalogs.format import SCHEMA_VERSION, Entry
from catalogs.kernels import KernelRow

_WHAT_WON = ("candidate", "numerics")
_CODE = ("source_sha256", "artifact_sha256")


def freeze(
    entries: Iterable[Entry],
    *,
    role: str,
    kernels: Iterable[KernelRow],
    device: DeviceIdentity | str,
    toolchain: Mapping[str, Any] | str,
) -> Catalog:
    """The catalog of these entries, in canonical order, whatever order they come in; nothing is filtered.

    ``device`` and ``toolchain`` are a description, or its digest alone. Two entries with one key and the same winner
    (candidate, numerics, source and machine code) become one: that of the smaller job and trial id, so that no better
    sample is picked. Raises CatalogConflict, naming both jobs and trials, where the winners differ, and FormatError
    for entries or rows that no catalog can hold.
    """
    rows: dict[tuple[str, str], KernelRow] = {}
    for row in kernels:
        if rows.setdefault(row.order, row) != row:
            raise CatalogConflict(
                f"kernel {row.name!r} with params {dict(row.params)} is given twice, as program "
                f"{rows[row.order].program_digest} and as {row.program_digest}"
            )
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "role": role,
        "device": device.digest if isinstance(device, DeviceIdentity) else device,
        "toolchain": toolchain if isinstance(toolchain, str) else sha256_hex(toolchain),
        "kernels": [rows[order].document() for order in sorted(rows)],
        "entries": [entry.document() for entry in _one_per_key(entries)],
    }
    if isinstance(device, DeviceIdentity):
        document["device_identity"] = {"kind": device.kind, "identity": device.identity}
    if not isinstance(toolchain, str):
        document["toolchain_description"] = toolchain
    try:
        document["digest"] = sha256_hex(document)
        data = canonical_json(document)
    except (TypeError, ValueError) as error:
        raise FormatError(f"catalog: a value is not JSON ({error})") from None
    # read back as any reader would, so that what is frozen is what can be opened
    return Catalog.from_bytes(data)


def _one_per_key(entries: Iterable[Entry]) -> list[Entry]:
    kept: dict[tuple[str, bytes], Entry] = {}
    for entry in sorted(entries, key=lambda entry: (entry.job_id, entry.trial_id)):
        try:
            order = entry_order(entry)
        except (TypeError, ValueError) as error:
            raise FormatError(f"key of job {entry.job_id}, trial {entry.trial_id}: not JSON ({error})") from None
        first = kept.setdefault(order, entry)
        if _won(first) != _won(entry):
            raise CatalogConflict(
                f"two winners for one key ({entry.kernel}, dims {dict(entry.key.dims)}): job {first.job_id}, trial "
                f"{first.trial_id} and job {entry.job_id}, trial {entry.trial_id} differ in {_difference(first, entry)}"
            )
    return [kept[order] for order in sorted(kept)]


def _won(entry: Entry) -> dict[str, Any]:
    out: dict[str, Any] = {name: getattr(entry, name) for name in _WHAT_WON}
    return out | {f"code.{name}": entry.code.get(name) for name in _CODE}


def _difference(one: Entry, other: Entry) -> str:
    ours, theirs = _won(one), _won(other)
    return ", ".join(name for name in ours if ours[name] != theirs[name])

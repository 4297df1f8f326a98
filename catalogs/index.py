"""The index of a catalog's file: from a key to the bytes of its entry, without parsing any entry.

It only repeats what the file says, and is believed only where the file says the same: each line's key is compared with
the index's, byte by byte, so that no index can turn a hit into a miss. A wrong or missing one is made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from catalogs.canonical import canonical_json, parse_json
from catalogs.catalog import Catalog
from catalogs.errors import FormatError
from catalogs.kernels import KernelRow
from catalogs.key import LookupKey
from catalogs.lines import SEPARATOR, Lines
from catalogs.lookup import Hit
from catalogs.sealed import seal, unseal

_VERSION = 1
_MEASURED = ("threads", "metric", "cache_context", "aliasing")
_KEY = b'"key":'
"""In canonical JSON a quote within a text is escaped, so this is a member's name wherever it stands."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Entries whose keys differ in their dims only."""

    kernel: KernelRow
    key: LookupKey
    """Theirs, without dims."""
    spans: Mapping[tuple[int, ...], tuple[int, int]]
    """Dims in declared order → (offset, length) in the file."""
    hits: dict[tuple[int, ...], Hit] = field(default_factory=dict)
    """Those that were asked for."""


GroupKey = tuple[str, tuple[tuple[str, str], ...], int, str, str, str]


def group_key(key: LookupKey) -> GroupKey:
    """What a group is found by. Keys with ``extra`` fields are in groups that no lookup of this version asks for."""
    return (
        key.program_digest,
        tuple(sorted(key.dtypes.items())),
        key.threads,
        key.metric,
        key.cache_context,
        key.aliasing,
    )


def build_index(catalog: Catalog, lines: Lines) -> bytes:
    """The index file of a catalog's file."""
    rows = {row.program_digest: (number, row) for number, row in enumerate(catalog.kernels)}
    groups: dict[str, dict[str, Any]] = {}
    for entry, (offset, length) in zip(catalog.entries, lines.spans, strict=True):
        number, row = rows[entry.key.program_digest]
        key = {name: getattr(entry.key, name) for name in ("dtypes", *_MEASURED, "extra")}
        name = repr((number, sorted(entry.key.dtypes.items()), [key[n] for n in _MEASURED], entry.key.extra))
        group = groups.setdefault(
            name, {"kernel": number, **key, "dims": [[] for _ in row.dims], "offsets": [], "lengths": []}
        )
        for column, dim in zip(group["dims"], row.dims, strict=True):
            column.append(entry.key.dims[dim])
        group["offsets"].append(offset)
        group["lengths"].append(length)
    return seal({"version": _VERSION, "catalog": catalog.digest, "groups": list(groups.values())})


def read_index(
    index: bytes, *, digest: str, data: bytes, device: str, toolchain: str, kernels: tuple[KernelRow, ...]
) -> dict[Any, Group]:
    """The groups of an index file, by :func:`group_key` (or by number, for keys with ``extra`` fields).

    Raises FormatError when it is damaged, belongs to another catalog, or says anything else than the file's lines.
    """
    document = unseal(index, name="index")
    try:
        if document["version"] != _VERSION or document["catalog"] != digest:
            raise FormatError("index: of another catalog or version")
        groups: dict[Any, Group] = {}
        spans: list[tuple[int, int]] = []
        for number, stored in enumerate(document["groups"]):
            row = kernels[stored["kernel"]]
            key = LookupKey.from_document(
                {
                    "program_digest": row.program_digest,
                    "dims": {},
                    "device": device,
                    "toolchain": toolchain,
                    **{name: stored[name] for name in ("dtypes", *_MEASURED, "extra")},
                },
                path="index",
            )
            for column in (stored["offsets"], stored["lengths"], *stored["dims"]):
                if not set(map(type, column)) <= {int}:
                    raise FormatError("index: a place or a dim that is no integer")
            own = list(zip(stored["offsets"], stored["lengths"], strict=True))
            columns = stored["dims"]
            points = zip(*columns, strict=True) if columns else [()] * len(own)
            group = Group(kernel=row, key=key, spans=dict(zip(points, own, strict=True)))
            name = number if key.extra else group_key(key)
            if groups.setdefault(name, group) is not group or len(group.spans) != len(own):
                raise FormatError("index: a key that is there twice")
            spans += own
        _check_spans(sorted(spans), data)
        for group in groups.values():
            _check_keys(group, data)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"index: not one that this code writes ({error!r})") from None
    return groups


def _check_spans(spans: list[tuple[int, int]], data: bytes) -> None:
    """Every entry is in the index, and every newline of the file stands where one belongs."""
    if data.count(b"\n") != len(spans) + 1:
        raise FormatError("index: another number of lines than the catalog")
    place = data.index(b"\n") + 1
    gap = len(SEPARATOR)
    for offset, length in spans:
        if offset != place:
            raise FormatError("index: its entries do not lie where the catalog's do")
        place = offset + length + gap
        if data[place - gap : place] != SEPARATOR and place != spans[-1][0] + spans[-1][1] + gap:
            raise FormatError("index: its lines do not end where the catalog's do")
    if spans and data[place - gap : place] != b"\n]":
        raise FormatError("index: the catalog does not end where its last entry does")


def _check_keys(group: Group, data: bytes) -> None:
    """The key of each line is the one that the index gives it."""
    names = group.kernel.dims
    order = sorted(range(len(names)), key=names.__getitem__)
    whole = group.key.document()
    before = canonical_json({name: whole[name] for name in whole if name < "dims"})
    after = canonical_json({name: whole[name] for name in whole if name > "dims"})
    pairs = b",".join(canonical_json(names[n]).replace(b"%", b"%%") + b":%d" for n in order)
    wanted = before[:-1].replace(b"%", b"%%") + b',"dims":{' + pairs + b"}," + after[1:].replace(b"%", b"%%")
    for dims, (offset, length) in group.spans.items():
        place, end = data.find(_KEY, offset, offset + length), offset + length
        if data.find(_KEY, place + len(_KEY), end) >= 0:  # a member of that name elsewhere in the entry
            key = parse_json(data[offset:end], name="entry")["key"]
            same = canonical_json(key) == wanted % tuple([dims[n] for n in order])
        else:
            same = place >= 0 and data.startswith(wanted % tuple([dims[n] for n in order]), place + len(_KEY), end)
        if not same:
            raise FormatError("index: gives an entry another key than the entry has")

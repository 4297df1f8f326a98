"""``tuner catalog freeze | list | get | diff``: what is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from catalogs import canonical_json
from tuner_service.cli.connect import connected
from tuner_service.cli.errors import BadOptionError, CommandError, ExitStatus
from tuner_service.cli.options import DataDirOption, JsonOption, LabelOption, LimitOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table, say, say_cut
from tuner_service.cli.request import parse_pairs
from tuner_service.cli.words import candidate_words, case_words, seconds_words
from tuner_service.client import Document

DigestArgument = Annotated[str, typer.Argument(metavar="DIGEST", help="Digest of a catalog.")]


def freeze(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Jobs that have succeeded.")],
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="KERNEL[:dim=N,…]", help="Only such cases, like softmax:rows=64. Repeatable."),
    ] = None,
    label: LabelOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Freeze finished jobs into a candidate and a reference catalog; says which cases were left out, and why."""
    cases, labels = [_case(text) for text in case or ()], dict(parse_pairs("--label", label or ()))
    with connected(url=url, data_dir=data_dir) as client:
        frozen = client.freeze(job_ids, cases=cases, labels=labels)
    if as_json:
        print_json(frozen)
        return
    for role in ("candidate", "reference"):
        print_line(f"{role:9} {frozen[role]['digest']} ({frozen[role]['entries']} entries)")
    for left in frozen["left_out"]:
        say(f"left out: {case_words(left)} of {left['job_id']}: {left['reason']}")


def list_catalogs(
    role: Annotated[str | None, typer.Option(help="candidate or reference.")] = None,
    limit: LimitOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List catalogs, newest first, and where aliases point."""
    with connected(url=url, data_dir=data_dir) as client:
        found = client.catalogs(limit=limit, **({"role": role} if role else {}))
        aliases = client.aliases()
    if as_json:
        print_json({"items": found, "next": None, "total": found.total, "aliases": aliases})
        return
    names: dict[str, list[str]] = {}
    for manifest in aliases:
        for entry in manifest["entries"]:
            names.setdefault(entry["digest"], []).append(manifest["alias"])
    rows = [
        [
            one["digest"],
            one["role"],
            ", ".join(one["kernels"]),
            str(one["entries"]),
            ", ".join(names.get(one["digest"], [])),
            one["created_at"],
        ]
        for one in found
    ]
    print_table(["digest", "role", "kernels", ">entries", "aliases", "created"], rows)
    say_cut(len(found), found.total)


def get(
    digest: DigestArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the canonical bytes there; `catalogs.open` reads it.")
    ] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a catalog's entries, or write it to a file."""
    with connected(url=url, data_dir=data_dir) as client:
        catalog = client.catalog(digest)
    if output is not None:
        try:
            output.write_bytes(canonical_json(catalog))
        except OSError as error:
            raise BadOptionError("--output", str(output), f"cannot be written: {error.strerror or error}") from None
        say(f"wrote {output}")
    if as_json:
        print_json(catalog)
    elif output is None:
        print_line(f"{catalog['role']} {catalog['digest']}")
        print_line(f"device {catalog['device']}")
        print_line(f"toolchain {catalog['toolchain']}")
        rows = [
            [_words(entry), candidate_words(entry["candidate"]), seconds_words(entry["median_seconds"])]
            for entry in catalog["entries"]
        ]
        print_table(["case", "candidate", ">median"], rows)


def diff(
    one: DigestArgument,
    other: Annotated[str, typer.Argument(metavar="DIGEST", help="Digest of another catalog.")],
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """What differs between two catalogs, key by key. Exit status 1 when anything does."""
    with connected(url=url, data_dir=data_dir) as client:
        first, second = client.catalog(one), client.catalog(other)
    rows = differences(first, second)
    if as_json:
        print_json({"one": one, "other": other, "differences": rows})
    elif rows:
        print_table(["case", "field", "one", "other"], [[row[name] for name in _DIFF_COLUMNS] for row in rows])
    else:
        print_line("the catalogs hold the same winners")
    if rows:
        raise CommandError(f"{len(rows)} difference(s)", status=ExitStatus.NEGATIVE)


_DIFF_COLUMNS = ("case", "field", "one", "other")


def differences(one: Document, other: Document) -> list[dict[str, str]]:
    """Rows ``{"case", "field", "one", "other"}``: header fields, keys of one only, and what won or what it became."""
    rows = [
        {"case": "", "field": name, "one": str(one[name]), "other": str(other[name])}
        for name in ("role", "device", "toolchain")
        if one[name] != other[name]
    ]
    ours, theirs = _by_place(one), _by_place(other)
    for place in dict.fromkeys((*ours, *theirs)):
        mine, its = ours.get(place), theirs.get(place)
        if mine is None or its is None:
            there = mine or its
            assert there is not None
            words = candidate_words(there["candidate"])
            rows.append(
                {
                    "case": _words(there),
                    "field": "entry",
                    "one": words if mine else "–",
                    "other": words if its else "–",
                }
            )
            continue
        for field, read in _COMPARED.items():
            if read(mine) != read(its):
                rows.append({"case": _words(mine), "field": field, "one": str(read(mine)), "other": str(read(its))})
    return rows


_COMPARED: Mapping[str, Any] = {
    "candidate": lambda entry: candidate_words(entry["candidate"]),
    "source": lambda entry: entry["code"].get("source_sha256"),
    "machine code": lambda entry: entry["code"].get("artifact_sha256"),
    "median": lambda entry: seconds_words(entry["median_seconds"]),
}


def _by_place(catalog: Document) -> dict[bytes, Document]:
    """Entries by all of their key but device and toolchain, so that catalogs of two toolchains can be compared."""
    return {canonical_json({**entry["key"], "device": "", "toolchain": ""}): entry for entry in catalog["entries"]}


def _words(entry: Mapping[str, Any]) -> str:
    return case_words({"kernel": entry["kernel"], "dims": entry["key"]["dims"]})


def _case(text: str) -> Document:
    kernel, _, rest = text.partition(":")
    dims: dict[str, int] = {}
    for part in filter(None, rest.split(",")):
        name, equals, extent = part.partition("=")
        if not equals or not extent.isdecimal():
            raise BadOptionError("--case", text, f"{part!r} is not dim=N", allowed="KERNEL or KERNEL:rows=64,cols=256")
        dims[name] = int(extent)
    return {"kernel": kernel, "dims": dims}

"""An index is believed only where the catalog's file says the same: no index, however sealed, changes an answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import catalog_factory as factory

import catalogs
from catalogs import Catalog, Hit, Miss
from catalogs.index import build_index, read_index
from catalogs.lines import Lines, write_lines
from catalogs.sealed import seal, unseal
from catalogs.snapshot import Snapshot

ENTRIES = [
    factory.entry(),
    factory.entry(512, 8192, trial="trl_2"),
    factory.entry(4096, 1024, trial="trl_3"),
    factory.entry(8, 8, dtype="float16", trial="trl_4"),
    factory.entry(kernel="softmax", trial="trl_5"),
    factory.entry(2, 2, trial="trl_6", key={"extra": {"key": 1}}),
]
Change = Callable[[dict[str, Any]], Any]


def every(**changes: Any) -> Change:
    """These members in every group."""
    return lambda document: [group.update(changes) for group in document["groups"]]


def swap_places(document: dict[str, Any]) -> None:
    """Two groups exchange their places in the file."""
    one, other = document["groups"][0], document["groups"][-1]
    for name in ("offsets", "lengths"):
        one[name], other[name] = other[name], one[name]


def reverse_places(document: dict[str, Any]) -> None:
    """Within a group, dims lead to each other's entries."""
    for group in document["groups"]:
        group["offsets"].reverse()
        group["lengths"].reverse()


def split(document: dict[str, Any]) -> None:
    """One group in two, of which a reader could keep only one."""
    whole = max(document["groups"], key=lambda group: len(group["offsets"]))
    half = {**whole, **{name: whole[name][1:] for name in ("offsets", "lengths")}}
    half["dims"] = [column[1:] for column in whole["dims"]]
    whole.update({name: whole[name][:1] for name in ("offsets", "lengths")})
    whole["dims"] = [column[:1] for column in whole["dims"]]
    document["groups"].append(half)


def every_dim(change: Callable[[int], Any]) -> Change:
    """Each dim changed."""
    return lambda document: [
        group.update(dims=[[change(value) for value in column] for column in group["dims"]])
        for group in document["groups"]
    ]


WRONG: dict[str, Change] = {
    "dims swapped": lambda document: [group["dims"].reverse() for group in document["groups"]],
    "dims wrong": every_dim(lambda value: value + 1),
    "dims are text": every_dim(str),
    "dims are floats": every_dim(float),
    "dims are lists": every_dim(lambda value: [value]),
    "dims emptied": every(dims=[]),
    "dims all equal": every_dim(lambda _: 1),
    "places swapped": swap_places,
    "places reversed": reverse_places,
    "places are floats": lambda d: [g.update(offsets=[float(x) for x in g["offsets"]]) for g in d["groups"]],
    "places are huge": lambda d: [g.update(lengths=[2**70 for _ in g["lengths"]]) for g in d["groups"]],
    "places are null": every(offsets=None),
    "group split": split,
    "group missing": lambda document: document["groups"].pop(),
    "group twice": lambda document: document["groups"].append(document["groups"][0]),
    "no groups": lambda document: document.update(groups=[]),
    "groups is an object": lambda document: document.update(groups={"a": 1}),
    "groups is null": lambda document: document.update(groups=None),
    "a group is null": lambda document: document["groups"].append(None),
    "dtypes is a list": every(dtypes=[]),
    "dtypes emptied": every(dtypes={}),
    "dtypes wrong": every(dtypes={"x": "float64"}),
    "threads is true": every(threads=True),
    "threads is a list": every(threads=[1]),
    "threads wrong": every(threads=2),
    "metric wrong": every(metric="e2e_batch"),
    "metric is null": every(metric=None),
    "extra wrong": every(extra={"block": 1}),
    "extra is a list": every(extra=[]),
    "kernel swapped": lambda d: [g.update(kernel=1 - g["kernel"]) for g in d["groups"]],
    "kernel is text": every(kernel="0"),
    "kernel is beyond": every(kernel=9),
    "catalog is another": lambda document: document.update(catalog="0" * 64),
    "version is newer": lambda document: document.update(version=2),
}


def made(entries: list[catalogs.Entry]) -> tuple[Catalog, Lines, bytes]:
    """A catalog, its file and its index."""
    frozen = factory.catalog(entries)
    lines = write_lines(frozen)
    return frozen, lines, build_index(frozen, lines)


def groups_of(frozen: Catalog, lines: Lines, index: bytes) -> dict[Any, Any]:
    """What an index is read as."""
    return read_index(
        index,
        digest=frozen.digest,
        data=lines.data,
        device=frozen.device,
        toolchain=frozen.toolchain,
        kernels=frozen.kernels,
    )


def check_answers(snapshot: Snapshot, frozen: Catalog) -> None:
    """Every entry is hit, and what is not there missed."""
    opened = catalogs.OpenCatalog(lambda _: snapshot, on_miss="return", queue=None)
    assert len(opened) == len(frozen.entries)
    for entry in frozen.entries:
        if entry.key.extra:
            continue  # no lookup of this version asks for it
        asked: dict[str, Any] = {"kernel": entry.kernel, "dtypes": entry.key.dtypes, "device": frozen.device}
        found = opened.lookup(**asked, dims=entry.key.dims, toolchain=frozen.toolchain)
        assert isinstance(found, Hit)
        assert found.entry == entry
        swapped = {"rows": entry.key.dims["cols"] + 1, "cols": entry.key.dims["rows"]}
        missed = opened.lookup(**asked, dims=swapped, toolchain=frozen.toolchain)
        assert isinstance(missed, Miss)
        assert missed.nearest


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_wrong_index_that_is_sealed_again_changes_no_answer(change: Change) -> None:
    frozen, lines, index = made(ENTRIES)
    document = unseal(index, name="index")
    change(document)
    wrong = seal(document)
    with pytest.raises(catalogs.FormatError, match="index"):
        groups_of(frozen, lines, wrong)
    check_answers(Snapshot.from_files(digest=frozen.digest, data=lines.data, index=wrong), frozen)


@pytest.mark.parametrize("wrong", [None, b"", b"xx", seal([]), seal(None), seal("index"), seal({"version": 1})])
def test_what_is_no_index_changes_no_answer(wrong: bytes | None) -> None:
    frozen, lines, _ = made(ENTRIES)
    check_answers(Snapshot.from_files(digest=frozen.digest, data=lines.data, index=wrong), frozen)


def test_a_true_index_is_used_and_parses_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, lines, index = made(ENTRIES)
    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "from_bytes", lambda *_, **__: pytest.fail("the entries were parsed"))
        snapshot = Snapshot.from_files(digest=frozen.digest, data=lines.data, index=index)
    check_answers(snapshot, frozen)


def test_a_member_called_key_elsewhere_in_an_entry_is_not_taken_for_the_key() -> None:
    mine, other = factory.entry(), factory.entry(7, 7)
    decoy = {**mine.candidate, "key": other.key.document()}
    frozen, lines, index = made([factory.entry(candidate=decoy), factory.entry(9, 9, trial="trl_9")])
    check_answers(Snapshot.from_files(digest=frozen.digest, data=lines.data, index=index), frozen)
    groups_of(frozen, lines, index)
    document = unseal(index, name="index")
    place = document["groups"][0]["dims"][0].index(1024)
    for column in document["groups"][0]["dims"]:
        column[place] = 7
    with pytest.raises(catalogs.FormatError, match="another key"):
        groups_of(frozen, lines, seal(document))


def test_names_with_a_percent_sign_are_names() -> None:
    name = "100%d"
    row = factory.row(name, dims=("%s", "cols"))
    entry = factory.entry(kernel=name)
    key = catalogs.LookupKey(**{**vars(entry.key), "dims": {"%s": 3, "cols": 4}, "aliasing": "%d%%"})
    named = catalogs.Entry(**{**vars(entry), "key": key})
    frozen = factory.catalog([named], kernels=[row])
    lines = write_lines(frozen)
    [group] = groups_of(frozen, lines, build_index(frozen, lines)).values()
    assert list(group.spans) == [(3, 4)]

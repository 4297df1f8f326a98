"""Lookups in an open catalog: hits, explained misses, what a miss does, what pins and refreshes."""

from __future__ import annotations

import builtins
import copy
import enum
import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import catalog_factory as factory

import catalogs
from catalogs import ANY_TOOLCHAIN, Hit, Miss, MissError, NotStored, QueryError, lookup
from catalogs.lines import write_lines

ASKED: dict[str, Any] = {
    "kernel": "rms_norm",
    "params": {"eps": 1e-6},
    "dims": {"rows": 1024, "cols": 4096},
    "dtypes": {"x": "float32"},
    "device": catalogs.this_device(),
    "toolchain": factory.FINGERPRINT,
}
BOUND = {name: value for name, value in ASKED.items() if name != "dims"}


class NumpyFloat(float):
    """A float with a repr of its own, as numpy's float64 is one."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)!r})"


def opened(**options: Any) -> catalogs.OpenCatalog:
    return catalogs.open(factory.catalog(), **options)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"toolchain": ANY_TOOLCHAIN},
        {"device": catalogs.this_device().digest},
        {"params": {}},
        {"params": {"eps": NumpyFloat(1e-6)}},
        {"dtypes": {}},
        {"dtypes": {"y": "float32", "x": "float32", "weight": "float32"}},
        {"dims": {"cols": 4096, "rows": 1024}},
    ],
)
def test_an_equal_key_hits_however_it_is_said(changes: dict[str, Any]) -> None:
    catalog = opened()
    for _ in range(2):
        found = catalog.lookup(**{**ASKED, **changes})
        assert isinstance(found, Hit)
        assert found.entry.trial_id == "trl_1"
    assert found.entry == factory.entry()


def test_params_and_dtypes_may_be_left_out() -> None:
    found = opened().lookup(
        kernel="softmax",
        dims={"rows": 1024, "cols": 4096},
        device=catalogs.this_device(),
        toolchain=ANY_TOOLCHAIN,
    )
    assert isinstance(found, Hit)
    assert found.entry.trial_id == "trl_3"


def test_dtypes_follow_the_tensor_they_are_like() -> None:
    catalog = catalogs.open(factory.catalog([factory.entry(dtype="float16"), factory.entry(trial="trl_2")]))
    half = catalog.lookup(**{**ASKED, "dtypes": {"x": "float16"}})
    assert isinstance(half, Hit)
    assert half.entry.key.dtypes == {"x": "float16", "weight": "float16", "y": "float16"}
    mixed = catalog.lookup(**{**ASKED, "dtypes": {"x": "float16", "y": "float32"}})
    assert isinstance(mixed, Miss)
    assert list(mixed.nearest[0].differs) == ["dtypes.y"]


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"dims": {"rows": 1024, "cols": 4095}}, {"dims.cols": (4095, 4096)}),
        ({"dims": {"rows": 1024}}, {"dims.cols": (None, 4096)}),
        ({"dims": {"rows": 1024, "cols": 4096, "heads": 2}}, {"dims.heads": (2, None)}),
        ({"dims": {"rows": 1024, "columns": 4096}}, {"dims.columns": (4096, None), "dims.cols": (None, 4096)}),
        ({"dtypes": {"x": "float16", "weight": "float32", "y": "float32"}}, {"dtypes.x": ("float16", "float32")}),
        ({"dtypes": {"scale": "float32"}}, {"dtypes.scale": ("float32", None)}),
        ({"params": {"eps": 1e-5}}, {"params.eps": (1e-5, 1e-6)}),
        ({"params": {"beta": 1.0}}, {"params.beta": (1.0, None)}),
        ({"toolchain": factory.OTHER_FINGERPRINT}, {"toolchain": (factory.OTHER_FINGERPRINT, factory.FINGERPRINT)}),
        ({"threads": 2}, {"threads": (2, 1)}),
        ({"metric": "e2e_batch"}, {"metric": ("e2e_batch", "device_batch")}),
        ({"cache_context": "cold"}, {"cache_context": ("cold", "warm")}),
        ({"aliasing": "y=x"}, {"aliasing": ("y=x", "none")}),
        (
            {"device": factory.OTHER_DEVICE},
            {"device": (factory.OTHER_DEVICE.digest, catalogs.this_device().digest)},
        ),
    ],
)
def test_every_field_alone_misses_and_is_named(changes: dict[str, Any], differs: dict[str, Any]) -> None:
    found = opened().lookup(**{**ASKED, **changes})
    assert isinstance(found, Miss)
    assert dict(found.nearest[0].differs) == differs
    assert found.nearest[0].entry.trial_id == "trl_1"
    for name in differs:
        assert name in found.reason


def test_a_catalog_explains_a_miss_as_a_list_of_its_entries_does() -> None:
    entries = [factory.entry(1 << n % 4, 33 + n, trial=f"trl_{n}", eps=(1e-6, 1e-5)[n % 2]) for n in range(20)]
    catalog = factory.catalog(entries)
    found = catalogs.open(catalog).lookup(**{**ASKED, "dims": {"rows": 3, "cols": 40}})
    assert isinstance(found, Miss)
    listed = lookup(catalog.entries, found.query)
    assert isinstance(listed, Miss)
    assert len(found.nearest) == 5
    assert [dict(near.differs) for near in found.nearest] == [dict(near.differs) for near in listed.nearest]
    assert found.reason == listed.reason


def test_a_kernel_that_is_not_there_misses() -> None:
    catalog = opened()
    found = catalog.lookup(**{**ASKED, "kernel": "layer_norm"})
    assert isinstance(found, Miss)
    assert found.nearest == ()
    assert "layer_norm" in found.reason
    assert isinstance(catalog.bind(**{**BOUND, "kernel": "layer_norm"})(1, 2, 3), Miss)


def test_bound_lookups_take_the_dims_in_declared_order() -> None:
    catalog = opened()
    bound = catalog.bind(**BOUND)
    assert bound.dims == ("rows", "cols")
    assert bound.digest == catalog.digest
    found = bound(512, 8192)
    assert isinstance(found, Hit)
    assert found.entry.trial_id == "trl_2"
    assert bound(512, 8192) is found
    assert catalog.lookup(**{**ASKED, "dims": {"rows": 512, "cols": 8192}}) is found
    missed = bound(8192, 512)
    assert isinstance(missed, Miss)
    assert missed.query.key.dims == {"rows": 8192, "cols": 512}
    assert bound(8192, 512) is missed


@pytest.mark.parametrize(
    "dims", [(), (1024,), (1024, 4096, 1), (1024, 4096.5), ("a", 1), (None, 1), ([1], 2), (True, 9)]
)
def test_bound_lookups_refuse_what_cannot_be_dims(dims: tuple[Any, ...]) -> None:
    with pytest.raises(QueryError, match="dims"):
        opened().bind(**BOUND)(*dims)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kernel": 3}, "kernel"),
        ({"kernel": ""}, "kernel"),
        ({"params": {"eps": float("nan")}}, "params.eps"),
        ({"params": {"eps": "1"}}, "params.eps"),
        ({"params": [1]}, "params"),
        ({"dtypes": {"x": 1}}, "dtypes.x"),
        ({"device": None}, "device"),
        ({"device": "cpu"}, "device .*this_device"),
        ({"toolchain": None}, "toolchain .*ANY_TOOLCHAIN"),
        ({"toolchain": "any"}, "toolchain .*ANY_TOOLCHAIN"),
        ({"threads": 0}, "threads"),
        ({"metric": None}, "metric"),
        ({"dims": {"rows": "many", "cols": 1}}, "dims.rows"),
        ({"dims": [1024, 4096]}, "dims"),
        ({"dims": {"rows": 1.5}}, "dims.rows"),
    ],
)
def test_words_that_no_key_can_have_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(QueryError, match=field):
        opened().lookup(**{**ASKED, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dims": {"rows": 1024.0, "cols": 4096}}, "dims.rows"),
        ({"dims": {"rows": 1024, "cols": 4096.0}}, "dims.cols"),
        ({"dims": {"rows": 1, "cols": True}}, "dims.cols"),
        ({"dims": 5}, "dims"),
        ({"threads": True}, "threads"),
        ({"threads": 1.0}, "threads"),
        ({"params": {"eps": True}}, "params.eps"),
    ],
)
def test_what_was_asked_before_does_not_change_what_is_refused(changes: dict[str, Any], field: str) -> None:
    one = factory.entry(1, 1, eps=1, trial="trl_one")
    catalog = catalogs.open(factory.catalog([factory.entry(), one]))
    asked = {**ASKED, **({"params": {"eps": 1}} if "params" in changes else {})}
    unit = {**asked, "params": {"eps": 1}, "dims": {"rows": 1, "cols": 1}}
    for _ in range(2):
        with pytest.raises(QueryError, match=field):
            catalog.lookup(**{**asked, **changes})
        assert isinstance(catalog.lookup(**ASKED), Hit)
        assert isinstance(catalog.lookup(**unit), Hit)
        assert isinstance(catalog.lookup(**{**unit, "params": {"eps": 1.0}}), Hit)


def test_bound_lookups_refuse_equal_values_of_other_types_whatever_was_hit() -> None:
    class Extent(enum.IntEnum):
        ROWS = 1024

    bound = catalogs.open(factory.catalog([factory.entry(), factory.entry(1, 4096, trial="trl_2")])).bind(**BOUND)
    for _ in range(2):
        for dims, name in (((1024.0, 4096), "rows"), ((1024, 4096.0), "cols"), ((True, 4096), "rows")):
            with pytest.raises(QueryError, match=rf"dims\.{name}: expected an integer"):
                bound(*dims)
        assert isinstance(bound(1024, 4096), Hit)
        assert isinstance(bound(1, 4096), Hit)
        assert bound(Extent.ROWS, 4096) is bound(1024, 4096)


@pytest.mark.parametrize("names", [("n",), ("b", "m", "n")])
def test_kernels_of_any_number_of_dims_are_as_strict(names: tuple[str, ...]) -> None:
    whole = factory.entry()
    key = catalogs.LookupKey(**{**vars(whole.key), "dims": dict.fromkeys(names, 1)})
    entry = catalogs.Entry(**{**vars(whole), "key": key})
    bound = catalogs.open(factory.catalog([entry], kernels=[factory.row(dims=names)])).bind(**BOUND)
    ones = [1] * len(names)
    for _ in range(2):
        assert isinstance(bound(*ones), Hit)
        for wrong in (True, 1.0):
            with pytest.raises(QueryError, match=r"dims\.n: expected an integer"):
                bound(*ones[1:], wrong)


def test_on_miss() -> None:
    wrong = {**ASKED, "dims": {"rows": 1, "cols": 1}}
    unnamed = {**ASKED, "dims": {"rows": 1}}
    given: list[Miss] = []
    calling = opened(on_miss=given.append)
    assert calling.lookup(**wrong) is given[0]
    assert calling.bind(**BOUND)(1, 1) is given[1]
    assert calling.lookup(**unnamed) is given[2]
    assert isinstance(calling.lookup(**ASKED), Hit)
    assert len(given) == 3
    for raising in (
        lambda: opened(on_miss="raise").lookup(**wrong),
        lambda: opened(on_miss="raise").bind(**BOUND)(1, 1),
    ):
        with pytest.raises(MissError, match=r"dims\.rows") as refused:
            raising()
        assert refused.value.miss.query.key.dims == {"rows": 1, "cols": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_miss": "ignore"}, "on_miss: expected 'return', 'raise', 'enqueue'"),
        ({"on_miss": None}, "on_miss"),
        ({"on_miss": "enqueue"}, "on_miss: 'enqueue' needs a source"),
        ({"role": "winner"}, "role: expected candidate or reference"),
        ({"device": 5}, "device: expected a DeviceIdentity or its digest"),
        ({"device": "cpu"}, "device: expected a DeviceIdentity or its digest"),
        ({"toolchain": "gcc"}, "toolchain: expected a fingerprint"),
        ({"source": "ftp://host/v1/aliases/prod"}, "source: expected http"),
        ({"source": "https://host/v1/aliases/../prod"}, "source"),
        ({"source": "https://host/aliases/prod"}, "source"),
        ({"source": "file:///etc/passwd"}, "source"),
    ],
)
def test_open_refuses_words_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        opened(**options)


def test_the_role_is_checked(tmp_path: Path) -> None:
    reference = factory.catalog(role="reference")
    with pytest.raises(catalogs.CatalogError, match="is a reference catalog, and a candidate one was asked for"):
        catalogs.open(reference)
    assert catalogs.open(reference, role="reference").digest == reference.digest


def test_the_environment_forces_a_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = catalogs.Store(tmp_path)
    old, new = factory.catalog([factory.entry()]), factory.catalog()
    for catalog in (old, new):
        store.put(catalog)
    target = catalogs.ManifestEntry(device=new.device, toolchain=new.toolchain, digest=new.digest)
    store.set_alias(catalogs.Manifest(alias="prod", entries=(target,)))
    assert catalogs.open(store).digest == new.digest
    monkeypatch.setenv("TUNER_CATALOG_DIGEST", old.digest)
    forced = catalogs.open(store)
    assert forced.digest == old.digest
    assert forced.refresh() is False
    with pytest.raises(catalogs.CatalogError, match="TUNER_CATALOG_DIGEST forces"):
        catalogs.open(new)
    monkeypatch.setenv("TUNER_CATALOG_DIGEST", "0" * 64)
    with pytest.raises(NotStored, match="0000"):
        catalogs.open(store)
    monkeypatch.setenv("TUNER_CATALOG_DIGEST", "latest")
    with pytest.raises(QueryError, match="TUNER_CATALOG_DIGEST"):
        catalogs.open(store)


def test_the_environment_switches_lookups_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CATALOG", "off")
    off = catalogs.open("/nowhere", "http://localhost:1/v1/aliases/prod")
    found = off.lookup(**ASKED)
    assert isinstance(found, Miss)
    assert found.reason == "lookups are switched off by TUNER_CATALOG=off"
    assert found.nearest == ()
    assert isinstance(off.bind(**BOUND)(1024, 4096), Miss)
    assert (off.digest, len(off), off.refresh()) == ("off", 0, False)
    with pytest.raises(MissError, match="switched off"):
        catalogs.open("/nowhere", on_miss="raise").lookup(**ASKED)
    monkeypatch.setenv("TUNER_CATALOG", "on")
    assert isinstance(opened().lookup(**ASKED), Hit)
    monkeypatch.setenv("TUNER_CATALOG", "maybe")
    with pytest.raises(QueryError, match="TUNER_CATALOG: expected on or off"):
        opened()


def test_refresh_is_explicit_and_bound_lookups_stay(tmp_path: Path) -> None:
    store = catalogs.Store(tmp_path)

    def promote(catalog: catalogs.Catalog) -> None:
        store.put(catalog)
        target = catalogs.ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=catalog.digest)
        store.set_alias(catalogs.Manifest(alias="prod", entries=(target,)))

    old, new = factory.catalog([factory.entry(width=8)]), factory.catalog([factory.entry(width=64)])
    promote(old)
    catalog = catalogs.open(tmp_path)
    bound = catalog.bind(**BOUND)
    promote(new)
    assert catalog.digest == old.digest
    assert catalog.refresh() is True
    assert catalog.digest == new.digest
    assert catalog.lookup(**ASKED).entry.candidate["width"] == 64  # type: ignore[union-attr]
    assert bound.digest == old.digest
    assert bound(1024, 4096).entry.candidate["width"] == 8  # type: ignore[union-attr]
    assert catalog.refresh() is False


def test_nothing_is_read_after_open(tmp_path: Path) -> None:
    store = catalogs.Store(tmp_path)
    digest = store.put(factory.catalog())
    path = tmp_path / "catalogs" / f"{digest}.json"
    catalog = catalogs.open(path)
    with path.open("r+b") as file:
        file.truncate(0)
    path.unlink()
    path.with_suffix(".index").unlink()
    assert isinstance(catalog.lookup(**ASKED), Hit)
    assert isinstance(catalog.lookup(**{**ASKED, "dims": {"rows": 2, "cols": 2}}), Miss)


def test_a_file_opens_with_its_own_digest(tmp_path: Path) -> None:
    frozen = factory.catalog()
    path = tmp_path / "prod.json"
    path.write_bytes(catalogs.canonical_json(frozen.document()))
    assert catalogs.open(path).digest == frozen.digest
    path.write_bytes(path.read_bytes().replace(b"reload", b"cached"))
    with pytest.raises(catalogs.FormatError, match="edited"):
        catalogs.open(path)
    with pytest.raises(NotStored, match=r"other\.json"):
        catalogs.open(tmp_path / "other.json")


def test_any_spelling_and_any_name_of_a_catalog_opens(tmp_path: Path) -> None:
    frozen = factory.catalog()
    digest = catalogs.Store(tmp_path).put(frozen)
    stored = tmp_path / "catalogs" / f"{digest}.json"
    renamed = tmp_path / "mine.json"
    renamed.write_bytes(stored.read_bytes())
    named = tmp_path / f"{digest}.json"
    served = json.dumps(frozen.document(), indent=1).encode()
    named.write_bytes(served)
    for path in (renamed, named):
        assert catalogs.open(path).digest == digest
        assert isinstance(catalogs.open(path).lookup(**ASKED), Hit)
    stored.write_bytes(served)
    assert catalogs.Store(tmp_path).snapshot(digest).digest == digest
    for damaged in (served.replace(b'"reload"', b'"cached"'), served[:-9]):
        named.write_bytes(damaged)
        with pytest.raises(catalogs.FormatError, match="damaged, cut off or edited"):
            catalogs.open(named)
    named.with_stem("0" * 64).write_bytes(served)
    with pytest.raises(catalogs.FormatError, match=f"asked for 0000.*{digest}"):
        catalogs.open(named.with_stem("0" * 64))


def test_a_renamed_store_file_must_be_the_forced_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(write_lines(factory.catalog()).data)
    monkeypatch.setenv("TUNER_CATALOG_DIGEST", factory.catalog().digest)
    assert catalogs.open(path).digest == factory.catalog().digest
    path.write_bytes(path.read_bytes().replace(b'"reload"', b'"cached"'))
    with pytest.raises(catalogs.FormatError, match="digest: asked for"):
        catalogs.open(path)


def test_the_asked_device_and_toolchain_are_compared_with_a_file_or_catalog(tmp_path: Path) -> None:
    frozen = factory.catalog()
    path = tmp_path / "prod.json"
    path.write_bytes(catalogs.canonical_json(frozen.document()))
    for origin in (path, frozen):
        assert catalogs.open(origin, device=frozen.device, toolchain=frozen.toolchain).digest == frozen.digest
        assert catalogs.open(origin, toolchain=ANY_TOOLCHAIN).digest == frozen.digest
        with pytest.raises(catalogs.CatalogError, match=f"device: .* for {frozen.device}, not for"):
            catalogs.open(origin, device=factory.OTHER_DEVICE)
        with pytest.raises(catalogs.CatalogError, match=f"toolchain: .* for {frozen.toolchain}, not for"):
            catalogs.open(origin, toolchain=factory.OTHER_FINGERPRINT)
    theirs = factory.catalog([factory.entry(device=factory.OTHER_DEVICE.digest)], device=factory.OTHER_DEVICE)
    assert catalogs.open(theirs).digest == theirs.digest, "another device's catalog may be looked at"


def test_an_alias_that_names_another_catalog_than_it_says_is_refused(tmp_path: Path) -> None:
    store = catalogs.Store(tmp_path)
    frozen, reference = factory.catalog(), factory.catalog(role="reference")
    theirs = factory.catalog([factory.entry(device=factory.OTHER_DEVICE.digest)], device=factory.OTHER_DEVICE)
    for catalog in (frozen, reference, theirs):
        store.put(catalog)

    def point(digest: str, toolchain: str = frozen.toolchain) -> None:
        target = catalogs.ManifestEntry(device=frozen.device, toolchain=toolchain, digest=digest)
        store.set_alias(catalogs.Manifest(alias="prod", entries=(target,)))

    for digest, toolchain, what in (
        (frozen.digest, factory.OTHER_FINGERPRINT, "toolchain"),
        (reference.digest, frozen.toolchain, "role"),
        (theirs.digest, frozen.toolchain, "device"),
    ):
        point(digest, toolchain)
        with pytest.raises(catalogs.FormatError, match=f"alias 'prod': .* for {what} .*catalog's {what} is"):
            catalogs.open(store)
    point(frozen.digest)
    assert catalogs.open(store).digest == frozen.digest
    aliases = tmp_path / "aliases"
    (aliases / "canary.json").write_bytes((aliases / "prod.json").read_bytes())
    with pytest.raises(catalogs.FormatError, match=r"alias 'canary': .*manifest of 'prod'"):
        catalogs.open(store, alias="canary")


def test_an_empty_store_and_an_unnamed_alias_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(NotStored, match="alias"):
        catalogs.open(tmp_path)
    store = catalogs.Store(tmp_path)
    frozen = factory.catalog()
    store.put(frozen)
    target = catalogs.ManifestEntry(device=frozen.device, toolchain=frozen.toolchain, digest=frozen.digest)
    for name in ("prod", "canary"):
        store.set_alias(catalogs.Manifest(alias=name, entries=(target,)))
    with pytest.raises(QueryError, match=r"\['canary', 'prod'\]"):
        catalogs.open(store)
    assert catalogs.open(store, alias="canary").digest == frozen.digest
    with pytest.raises(NotStored, match="beta"):
        catalogs.open(store, alias="beta")
    with pytest.raises(catalogs.FormatError, match="alias"):
        catalogs.open(store, alias="../prod")


def test_one_alias_serves_a_mixed_fleet(tmp_path: Path) -> None:
    store = catalogs.Store(tmp_path)
    mine = factory.catalog()
    theirs = factory.catalog(
        [factory.entry(device=factory.OTHER_DEVICE.digest)], device=factory.OTHER_DEVICE, toolchain=factory.TOOLCHAIN
    )
    newer = factory.catalog([factory.entry(toolchain=factory.OTHER_FINGERPRINT)], toolchain=factory.OTHER_FINGERPRINT)
    targets = [catalogs.ManifestEntry(device=c.device, toolchain=c.toolchain, digest=c.digest) for c in (theirs, mine)]
    for catalog in (mine, theirs, newer):
        store.put(catalog)
    store.set_alias(catalogs.Manifest(alias="prod", entries=tuple(targets)))
    assert catalogs.open(store).digest == mine.digest
    assert catalogs.open(store, device=factory.OTHER_DEVICE).digest == theirs.digest
    with pytest.raises(NotStored, match="device"):
        catalogs.open(store, device="0" * 64)
    with pytest.raises(NotStored, match="toolchain"):
        catalogs.open(store, toolchain=newer.toolchain)
    with pytest.raises(NotStored, match="no reference catalog"):
        catalogs.open(store, role="reference")
    third = catalogs.ManifestEntry(device=newer.device, toolchain=newer.toolchain, digest=newer.digest)
    store.set_alias(catalogs.Manifest(alias="prod", entries=(third, *targets)))
    with pytest.raises(QueryError, match="toolchain"):
        catalogs.open(store)
    assert catalogs.open(store, toolchain=ANY_TOOLCHAIN).digest == newer.digest
    assert catalogs.open(store, toolchain=mine.toolchain).digest == mine.digest


def test_many_threads_see_one_answer() -> None:
    catalog = catalogs.open(factory.large(512))
    shapes = [entry.key.dims for entry in factory.large(512).entries]
    found: list[list[Any]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def look(mine: list[Any]) -> None:
        start.wait()
        mine += [catalog.lookup(**{**ASKED, "dims": shape}) for shape in shapes]

    threads = [threading.Thread(target=look, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in found:
        assert all(isinstance(hit, Hit) and hit is first for hit, first in zip(mine, found[0], strict=True))
        assert [hit.entry.key.dims for hit in mine] == shapes


def test_hits_can_be_sent_to_another_process() -> None:
    hit = opened().lookup(**ASKED)
    assert pickle.loads(pickle.dumps(hit)) == hit


def test_misses_can_be_sent_to_another_process() -> None:
    catalog = opened(on_miss="raise")
    for asked in (ASKED, {**ASKED, "toolchain": ANY_TOOLCHAIN}):
        with pytest.raises(MissError) as raised:
            catalog.lookup(**{**asked, "dims": {"rows": 3, "cols": 4096}})
        sent = pickle.loads(pickle.dumps(raised.value))
        assert str(sent) == str(raised.value)
        assert (sent.miss.query, sent.miss.nearest) == (raised.value.miss.query, raised.value.miss.nearest)
    assert copy.deepcopy(ANY_TOOLCHAIN) is ANY_TOOLCHAIN


def test_a_star_import_leaves_the_built_in_open_alone() -> None:
    names: dict[str, Any] = {}
    exec("from catalogs import *\nopened = open", names)
    assert names["opened"] is builtins.open
    assert names["Hit"] is Hit


def test_every_exported_name_is_there() -> None:
    for name in catalogs.__all__:
        assert getattr(catalogs, name) is not None
    assert callable(catalogs.open)
    assert callable(catalogs.freeze)
    assert callable(catalogs.pull)
    assert callable(catalogs.lookup)
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        _ = catalogs.close  # type: ignore[attr-defined]

"""Any damage to any file of a store: what is read is refused, or is exactly what was written."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "unit" / "catalogs"))

import catalog_factory as factory

import catalogs
from catalogs import Catalog, CatalogError, Hit, Miss, Store

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Stored:
    """A store that holds one catalog, and a scratch copy of it to be damaged."""

    whole: Path
    catalog: Catalog

    def copy(self) -> Path:
        """A fresh scratch copy."""
        target = Path(tempfile.mkdtemp(dir=self.whole.parent))
        shutil.copytree(self.whole, target, dirs_exist_ok=True)
        return target

    def files(self) -> list[Path]:
        """Every file of the store, relative to it."""
        return sorted(path.relative_to(self.whole) for path in self.whole.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("stores")
    store = Store(folder / "whole")
    catalog = factory.catalog()
    digest = store.put(catalog)
    target = catalogs.ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=digest)
    store.set_alias(
        catalogs.Manifest(alias="prod", entries=(target,)), source="http://host/v1/aliases/prod", etag='"1"'
    )
    yield Stored(store.folder, catalog)
    shutil.rmtree(folder)


def damaged(data: bytes, draw: st.DrawFn) -> bytes:
    """Some bytes flipped, cut off, cut out, doubled, or moved."""
    kind = draw(st.sampled_from(["flip", "truncate", "remove", "insert", "swap", "newline"]))
    place = draw(st.integers(0, max(0, len(data) - 1)))
    if kind == "flip":
        return data[:place] + bytes([data[place] ^ draw(st.integers(1, 255))]) + data[place + 1 :]
    if kind == "truncate":
        return data[:place]
    if kind == "remove":
        return data[:place] + data[place + draw(st.integers(1, 40)) :]
    if kind == "insert":
        return data[:place] + draw(st.binary(min_size=1, max_size=4)) + data[place:]
    if kind == "newline":
        newlines = [n for n, byte in enumerate(data) if byte == 10]
        if newlines and draw(st.booleans()):
            gone = draw(st.sampled_from(newlines))
            data = data[:gone] + data[gone + 1 :]
        return data[:place] + b"\n" + data[place:]
    other = draw(st.integers(0, max(0, len(data) - 1)))
    low, high = sorted((place, other))
    return data[:low] + data[high:] + data[low:high]


def answers(catalog: catalogs.OpenCatalog, shapes: list[dict[str, int]]) -> list[object]:
    """What an open catalog says to a few lookups."""
    out: list[object] = []
    for kernel in ("rms_norm", "softmax"):
        for shape in shapes:
            found = catalog.lookup(
                kernel=kernel, dims=shape, device=catalogs.this_device(), toolchain=factory.FINGERPRINT
            )
            if isinstance(found, Hit):
                out.append(found.entry)
            else:
                assert isinstance(found, Miss)
                out.append((found.reason, found.nearest))
    return out


SHAPES = [{"rows": 1024, "cols": 4096}, {"rows": 512, "cols": 8192}, {"rows": 512, "cols": 4096}]


@MANY
@given(st.data())
def test_a_damaged_store_is_refused_or_answers_the_same(stored: Stored, data: st.DataObject) -> None:
    files = stored.files()
    assert len(files) == 3
    chosen = data.draw(st.sampled_from(files), label="file")
    scratch = stored.copy()
    try:
        path = scratch / chosen
        before = path.read_bytes()
        after = damaged(before, data.draw)
        path.write_bytes(after)
        try:
            opened = catalogs.open(scratch)
        except CatalogError:
            assert after != before
            return
        assert opened.digest == stored.catalog.digest
        assert answers(opened, SHAPES) == answers(catalogs.open(stored.catalog), SHAPES)
        assert Store(scratch).get(opened.digest) == stored.catalog
    finally:
        shutil.rmtree(scratch)


@MANY
@given(st.data())
def test_a_damaged_catalog_is_refused_or_the_same(data: st.DataObject) -> None:
    frozen = factory.catalog()
    wire = catalogs.canonical_json(frozen.document())
    try:
        read = Catalog.from_bytes(damaged(wire, data.draw), digest=frozen.digest)
    except CatalogError:
        return
    assert read == frozen
    assert read.digest == frozen.digest


@MANY
@given(st.data())
def test_putting_a_catalog_again_heals_a_damaged_file(stored: Stored, data: st.DataObject) -> None:
    scratch = stored.copy()
    try:
        for path in sorted((scratch / "catalogs").iterdir()):
            if data.draw(st.booleans(), label=f"damage {path.suffix}"):
                path.write_bytes(damaged(path.read_bytes(), data.draw))
        store = Store(scratch)
        store.put(stored.catalog)
        for path in (scratch / "catalogs").iterdir():
            assert path.read_bytes() == (stored.whole / path.relative_to(scratch)).read_bytes()
        assert store.get(stored.catalog.digest) == stored.catalog
    finally:
        shutil.rmtree(scratch)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 1024]), st.sampled_from([8, 16, 4096])), unique=True, max_size=9),
    st.sampled_from([1, 2, 5, 1024]),
    st.sampled_from([8, 9, 4096]),
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([1e-6, 1e-5]),
    st.sampled_from([factory.FINGERPRINT, factory.OTHER_FINGERPRINT, catalogs.ANY_TOOLCHAIN]),
)
def test_an_open_catalog_and_a_plain_search_give_one_answer(
    shapes: list[tuple[int, int]], rows: int, cols: int, dtype: str, eps: float, toolchain: object
) -> None:
    entries = [
        factory.entry(r, c, dtype=["float32", "float16"][n % 2], eps=[1e-6, 1e-5][n % 3 == 0], trial=f"trl_{n}")
        for n, (r, c) in enumerate(shapes)
    ]
    frozen = factory.catalog(entries)
    found = catalogs.open(frozen).lookup(
        kernel="rms_norm",
        params={"eps": eps},
        dims={"rows": rows, "cols": cols},
        dtypes={"x": dtype},
        device=catalogs.this_device(),
        toolchain=toolchain,  # type: ignore[arg-type]
    )
    wanted = catalogs.Query(
        kernel="rms_norm",
        params={"eps": eps},
        key=factory.entry(rows, cols, dtype=dtype, eps=eps).key,
        toolchain=toolchain,  # type: ignore[arg-type]
    )
    plain = catalogs.lookup(frozen.entries, wanted)
    assert isinstance(found, Hit) == isinstance(plain, Hit)
    if isinstance(found, Hit) and isinstance(plain, Hit):
        assert found.entry == plain.entry
    if isinstance(found, Miss) and isinstance(plain, Miss):
        assert [near.entry for near in found.nearest] == [near.entry for near in plain.nearest]
        assert [near.differs for near in found.nearest] == [near.differs for near in plain.nearest]
        assert found.reason == plain.reason

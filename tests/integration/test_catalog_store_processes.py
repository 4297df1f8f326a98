"""Many processes on one store: killed writers, two writers, readers meanwhile, forks, and what a process imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "catalogs"))

import catalog_factory as factory

import catalogs
from catalogs import CatalogError, Hit, Miss, Store

ROOT = Path(__file__).parents[2]
FACTORY = Path(factory.__file__).parent
READY_SECONDS = 60


def promote(store: Store, catalog: catalogs.Catalog, alias: str = "prod") -> None:
    """Put a catalog and point the alias to it."""
    store.put(catalog)
    target = catalogs.ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=catalog.digest)
    store.set_alias(catalogs.Manifest(alias=alias, entries=(target,)))


def widths() -> list[catalogs.Catalog]:
    """Catalogs that differ in their winner's width, of some 60 entries each."""
    return [factory.catalog([factory.entry(rows=n, width=width) for n in range(1, 61)]) for width in (8, 16, 32)]


WRITER = """
import os, sys
sys.path[:0] = [{root!r}, {factory!r}]
import catalog_factory as factory, catalogs
store = catalogs.Store({folder!r})
print("ready", flush=True)
turn = 0
while True:  # a new catalog each time, so that every file is written each time
    turn += 1
    job = f"job_{{os.getpid()}}_{{turn}}"
    catalog = factory.catalog([factory.entry(rows=n, job=job) for n in range(1, 61)])
    store.put(catalog)
    target = catalogs.ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=catalog.digest)
    store.set_alias(catalogs.Manifest(alias="prod", entries=(target,)))
"""


def start_writer(folder: Path) -> subprocess.Popen[str]:
    """A process that writes without end; returns when it is about to."""
    code = WRITER.format(root=str(ROOT), factory=str(FACTORY), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_readers_never_see_a_partial_catalog_while_writers_are_killed(tmp_path: Path) -> None:
    made = widths()
    store = Store(tmp_path)
    for catalog in made:
        promote(store, catalog)
    jobs: set[str] = set()
    stop = threading.Event()
    opened = [0, 0]
    problems: list[str] = []

    def read(number: int) -> None:
        while not stop.is_set() or opened[number] < 20:
            try:
                catalog = catalogs.open(store)
                hit = catalog.lookup(
                    kernel="rms_norm",
                    dims={"rows": 7, "cols": 4096},
                    device=catalogs.this_device(),
                    toolchain=factory.FINGERPRINT,
                )
                assert isinstance(hit, Hit)
                assert hit.entry.key.dims["rows"] == 7
                assert len(catalog) == 60
                jobs.add(hit.entry.job_id)
            except (CatalogError, AssertionError) as error:
                problems.append(repr(error))
                return
            opened[number] += 1

    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for reader in readers:
        reader.start()
    for round_ in range(8):
        writers = [start_writer(tmp_path) for _ in range(2)]
        time.sleep(0.05 * (1 + round_ % 3))  # any moment will do
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            assert writer.wait() == -signal.SIGKILL
            assert writer.stdout is not None
            writer.stdout.close()
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert min(opened) >= 20
    assert len(jobs) > 1, "no writer got as far as an alias"
    for digest in store.digests():
        assert len(store.snapshot(digest)) == 60
    for catalog in made:  # and the next writer finds everything in order
        promote(store, catalog)
        assert catalogs.open(store).digest == catalog.digest
        assert store.get(catalog.digest) == catalog


def test_a_kill_between_writing_and_renaming_leaves_the_old_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    old, new, _ = widths()
    promote(store, old)
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        promote(store, new)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = [path for path in tmp_path.rglob(".partial-*") if path.is_file()]
    assert len(left) == 1
    assert catalogs.open(store).digest == old.digest
    assert store.digests() == [old.digest]
    assert store.aliases() == ["prod"]
    os.utime(left[0], (0, 0))
    promote(store, new)
    assert catalogs.open(store).digest == new.digest
    assert not left[0].exists()


def test_two_writers_of_everything_leave_everything_whole(tmp_path: Path) -> None:
    made = widths()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_all, args=(tmp_path, made)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(READY_SECONDS)
        assert process.exitcode == 0
    store = Store(tmp_path)
    assert store.digests() == sorted(catalog.digest for catalog in made)
    for catalog in made:
        assert store.get(catalog.digest) == catalog
    assert catalogs.open(store).digest in store.digests()
    assert not list(tmp_path.rglob(".partial-*"))


def _write_all(folder: Path, made: list[catalogs.Catalog]) -> None:
    store = Store(folder)
    for _ in range(3):
        for catalog in made:
            promote(store, catalog)


def _ask(opened: catalogs.OpenCatalog, bound: catalogs.BoundLookup, rows: list[int], pipe: Connection) -> None:
    answers = []
    for row in rows:
        found = bound(row, 4096)
        missed = opened.lookup(
            kernel="rms_norm",
            dims={"rows": row, "cols": 1},
            device=catalogs.this_device(),
            toolchain=factory.FINGERPRINT,
        )
        assert isinstance(missed, Miss)
        assert isinstance(found, Hit)
        answers.append((found.entry.digest, missed.reason))
    pipe.send((opened.digest, answers))
    pipe.close()


def test_lookups_go_on_in_forked_children_while_threads_look_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    catalog = widths()[0]
    promote(store, catalog)
    opened = catalogs.open(store)
    bound = opened.bind(kernel="rms_norm", device=catalogs.this_device(), toolchain=factory.FINGERPRINT)
    for path in tmp_path.rglob("*.*"):
        path.unlink()
    stop = threading.Event()

    def keep_busy() -> None:
        row = 0
        while not stop.is_set():
            row = row % 60 + 1
            bound(row, 4096)
            found = bound(row, 2)
            assert isinstance(found, Miss)
            assert found.reason

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        rows = list(range(1, 61))
        answers = []
        for _ in range(6):
            receiving, sending = multiprocessing.Pipe(duplex=False)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    _ask(opened, bound, rows, sending)
                    status = 0
                finally:
                    os._exit(status)
            sending.close()
            assert receiving.poll(READY_SECONDS), "the child hangs"
            answers.append(receiving.recv())
            receiving.close()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        busy.join()
    by_rows = {entry.key.dims["rows"]: entry.digest for entry in catalog.entries}
    for digest, given in answers:
        assert digest == catalog.digest
        assert [entry for entry, _ in given] == [by_rows[row] for row in rows]
        assert all("dims.cols" in reason for _, reason in given)


def test_artifacts_are_kept_by_device(tmp_path: Path) -> None:
    store = Store(tmp_path)
    data = b"\x7fELF library"
    sha256 = factory.hashlib.sha256(data).hexdigest()
    here, there = catalogs.this_device().digest, factory.OTHER_DEVICE.digest
    path = store.put_artifact(data, sha256=sha256, device=there)
    with pytest.raises(catalogs.NotStored, match="this is another one"):
        store.artifact(sha256, device=here)
    assert store.artifact(sha256, device=there) == path
    with pytest.raises(catalogs.FormatError, match="these bytes"):
        store.put_artifact(b"other", sha256=sha256, device=here)
    path.write_bytes(data[:-1])
    with pytest.raises(catalogs.FormatError, match="damaged"):
        store.artifact(sha256, device=there)
    store.put_artifact(data, sha256=sha256, device=there)
    assert store.artifact(sha256, device=there).read_bytes() == data
    with pytest.raises(catalogs.FormatError, match="artifact"):
        store.artifact("../../etc/passwd", device=there)
    with pytest.raises(catalogs.FormatError, match="device"):
        store.artifact(sha256, device="..")


def test_an_alias_to_a_missing_digest_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    catalog = factory.catalog()
    target = catalogs.ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=catalog.digest)
    store.set_alias(catalogs.Manifest(alias="prod", entries=(target,)))
    with pytest.raises(catalogs.NotStored, match=catalog.digest):
        catalogs.open(store)


def test_a_looking_up_process_holds_the_standard_library_and_no_network(tmp_path: Path) -> None:
    promote(Store(tmp_path), factory.catalog())
    code = f"""
import sys
before = set(sys.modules)
import catalogs
catalog = catalogs.open({str(tmp_path)!r})
bound = catalog.bind(kernel="rms_norm", device=catalogs.this_device(), toolchain=catalogs.ANY_TOOLCHAIN)
assert isinstance(bound(1024, 4096), catalogs.Hit)
assert bound(1, 1).reason
new = {{name.partition(".")[0] for name in set(sys.modules) - before}} - {{"catalogs"}}
print(sorted(new - set(sys.stdlib_module_names)), sorted(new & {{"http", "socket", "ssl", "logging", "tempfile"}}))
"""
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stdout.strip() == "[] []", run.stderr

"""Pulling over real HTTP: ETags, a service that is away or lies, libraries, and misses that become jobs."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "catalogs"))

import catalog_factory as factory

import catalogs
from catalogs import Catalog, Hit, Manifest, ManifestEntry, Miss, NotStored, QueryError, SourceError, Store
from catalogs.client import Source

LIBRARY = b"\x7fELF a compiled library"
ARTIFACT = {
    "library_sha256": hashlib.sha256(LIBRARY).hexdigest(),
    "symbol": "rms_norm",
    "arguments": [{"name": "x", "kind": "tensor"}],
}
WAIT_SECONDS = 30.0


@dataclass
class Answer:
    """What a path answers."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    promised_bytes: int | None = None
    trickle: bool = False


@dataclass
class Service:
    """A real HTTP server whose answers a test writes."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, str | None, int]] = field(default_factory=list)
    """(path, If-None-Match, status answered)."""
    posted: list[tuple[dict[str, Any], str | None]] = field(default_factory=list)
    post_statuses: list[int] = field(default_factory=list)

    @property
    def alias_url(self) -> str:
        """Where the alias is."""
        return f"{self.url}/v1/aliases/prod"

    def publish(self, *found: Catalog, reference: Catalog | None = None) -> None:
        """Serve catalogs, and an alias that points to them."""
        entries = tuple(
            ManifestEntry(
                device=c.device, toolchain=c.toolchain, digest=c.digest, reference=reference and reference.digest
            )
            for c in found
        )
        manifest = catalogs.canonical_json(Manifest(alias="prod", entries=entries).document())
        etag = f'"{hashlib.sha256(manifest).hexdigest()}"'
        self.answers["/v1/aliases/prod"] = Answer(body=manifest, headers={"ETag": etag})
        for catalog in (*found, *([reference] if reference else [])):
            self.answers[f"/v1/catalogs/{catalog.digest}"] = Answer(body=json.dumps(catalog.document()).encode())
        self.answers[f"/v1/artifacts/{ARTIFACT['library_sha256']}"] = Answer(body=LIBRARY)

    def paths(self) -> list[str]:
        """What was asked for, the last part of each path."""
        return [path.rpartition("/")[2] for path, _, _ in self.asked]


@pytest.fixture
def service() -> Iterator[Service]:
    state = Service()
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = state.answers.get(self.path, Answer(status=404))
            known = self.headers.get("If-None-Match")
            if known is not None and known == answer.headers.get("ETag"):
                answer = Answer(status=304, headers=answer.headers)
            state.asked.append((self.path, known, answer.status))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            size = len(answer.body) if answer.promised_bytes is None else answer.promised_bytes
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if answer.trickle:
                for n in range(len(answer.body)):
                    self.wfile.write(answer.body[n : n + 1])
                    if closing.wait(0.02):
                        break
            else:
                self.wfile.write(answer.body)
            self.close_connection = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = state.post_statuses.pop(0) if state.post_statuses else 202
            state.posted.append((json.loads(body), self.headers.get("Idempotency-Key")))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (BrokenPipeError, ConnectionResetError):  # the client had enough
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


def look(opened: catalogs.OpenCatalog, rows: int = 1024) -> Hit | Miss:
    return opened.lookup(
        kernel="rms_norm",
        dims={"rows": rows, "cols": 4096},
        device=catalogs.this_device(),
        toolchain=catalogs.ANY_TOOLCHAIN,
    )


def with_width(width: int, **changes: Any) -> Catalog:
    return factory.catalog([factory.entry(width=width, **changes)])


def test_open_pulls_once_and_then_only_at_refresh(service: Service, tmp_path: Path) -> None:
    old, new = with_width(8), with_width(64)
    reference = factory.catalog([factory.entry(width=4)], role="reference")
    service.publish(old, reference=reference)
    opened = catalogs.open(tmp_path, service.alias_url)
    assert service.paths() == ["prod", old.digest, reference.digest]
    assert opened.digest == old.digest
    assert isinstance(look(opened), Hit)
    again = catalogs.open(tmp_path, service.alias_url)
    assert again.digest == old.digest
    assert len(service.asked) == 3, "a second open must not ask the network"
    assert catalogs.open(tmp_path, service.alias_url, role="reference").digest == reference.digest
    assert opened.refresh() is False
    assert service.asked[-1][2] == 304
    service.publish(new)
    assert opened.digest == old.digest
    assert opened.refresh() is True
    assert opened.digest == new.digest
    assert service.paths()[-2:] == ["prod", new.digest]
    hit = look(opened)
    assert isinstance(hit, Hit)
    assert hit.entry.candidate["width"] == 64


def test_a_catalog_that_went_missing_is_fetched_again_though_the_alias_is_unchanged(
    service: Service, tmp_path: Path
) -> None:
    catalog = with_width(8)
    service.publish(catalog)
    store = Store(tmp_path)
    first = catalogs.pull(service.alias_url, store)
    assert (first.changed, first.fetched, first.digests) == (True, (catalog.digest,), (catalog.digest,))
    second = catalogs.pull(service.alias_url, store)
    assert (second.changed, second.fetched, second.digests) == (False, (), (catalog.digest,))
    (tmp_path / "catalogs" / f"{catalog.digest}.json").unlink()
    third = catalogs.pull(service.alias_url, store)
    assert (third.changed, third.fetched) == (False, (catalog.digest,))
    assert [status for _, _, status in service.asked if status == 304] == [304, 304]
    (tmp_path / "aliases" / "prod.json").write_bytes(b"damaged")
    assert catalogs.pull(service.alias_url, store).changed is True
    assert catalogs.open(store).digest == catalog.digest


def damage_catalog(folder: Path, catalog: Catalog) -> None:
    (folder / "catalogs" / f"{catalog.digest}.json").write_bytes(b"x")


def edit_catalog(folder: Path, catalog: Catalog) -> None:
    path = folder / "catalogs" / f"{catalog.digest}.json"
    path.write_bytes(path.read_bytes().replace(b'"reload"', b'"cached"'))


def lose_catalog(folder: Path, catalog: Catalog) -> None:
    (folder / "catalogs" / f"{catalog.digest}.json").unlink()


def damage_alias(folder: Path, catalog: Catalog) -> None:
    (folder / "aliases" / "prod.json").write_bytes(b"x")


def mislead_alias(folder: Path, catalog: Catalog) -> None:
    """The alias's file is whole, remembers the source's ETag, and names the catalog for another toolchain."""
    pointer = Store(folder).alias("prod")
    entry = ManifestEntry(device=catalog.device, toolchain=factory.OTHER_FINGERPRINT, digest=catalog.digest)
    Store(folder).set_alias(Manifest(alias="prod", entries=(entry,)), source=pointer.source, etag=pointer.etag)


def exchange_alias(folder: Path, catalog: Catalog) -> None:
    """The alias's file is that of another alias."""
    Store(folder).set_alias(Manifest(alias="canary", entries=()))
    (folder / "aliases" / "canary.json").replace(folder / "aliases" / "prod.json")


Damage = Callable[[Path, Catalog], None]
DAMAGES: list[tuple[Damage, str]] = [
    (damage_catalog, "damaged, cut off or edited"),
    (edit_catalog, "damaged, cut off or edited"),
    (lose_catalog, "is not in"),
    (damage_alias, "alias 'prod': its first line"),
    (mislead_alias, "alias 'prod': names catalog .* for toolchain"),
    (exchange_alias, "alias 'prod': its file holds the manifest of 'canary'"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_damaged_store_is_mended_from_its_source(
    service: Service, tmp_path: Path, damage: Damage, message: str
) -> None:
    good = with_width(8)
    service.publish(good)
    catalogs.open(tmp_path, service.alias_url)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    damage(tmp_path, good)
    damaged = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    with pytest.raises((catalogs.FormatError, NotStored), match=message):
        catalogs.open(tmp_path)
    for kept, lie in ((Answer(status=503), "503"), (edited(good), "edited")):
        answers = dict(service.answers)
        # the alias answers the same: only a catalog that has to be fetched can be lied about
        path = "/v1/aliases/prod" if lie == "503" else f"/v1/catalogs/{good.digest}"
        service.answers[path] = kept
        if lie == "503" or "catalog" in damage.__name__:
            with pytest.raises(SourceError, match=f"{message}.*fetching it again failed: .*{lie}"):
                catalogs.open(tmp_path, service.alias_url)
            assert damaged == {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
        service.answers = answers
    opened = catalogs.open(tmp_path, service.alias_url)
    assert opened.digest == good.digest
    assert isinstance(look(opened), Hit)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    asked = len(service.asked)
    assert catalogs.open(tmp_path, service.alias_url).digest == good.digest
    assert len(service.asked) == asked, "a mended store needs the source no more"


def test_a_store_that_cannot_be_written_is_a_catalog_error(service: Service, tmp_path: Path) -> None:
    service.publish(with_width(8))
    (tmp_path / "catalogs").write_bytes(b"in the way")
    with pytest.raises(catalogs.CatalogError):
        catalogs.open(tmp_path, service.alias_url)


Lie = Callable[[Service, Catalog], None]


def set_manifest(**changes: Any) -> Lie:
    """The alias answers a manifest with these members changed."""

    def lie(service: Service, new: Catalog) -> None:
        document = json.loads(service.answers["/v1/aliases/prod"].body)
        service.answers["/v1/aliases/prod"] = Answer(body=json.dumps({**document, **changes}).encode())

    return lie


def set_alias_answer(**changes: Any) -> Lie:
    """The alias answers otherwise."""
    return lambda service, new: service.answers.update({"/v1/aliases/prod": Answer(**changes)})


def set_catalog_answer(make: Callable[[Catalog], Answer]) -> Lie:
    """The new catalog's path answers otherwise."""
    return lambda service, new: service.answers.update({f"/v1/catalogs/{new.digest}": make(new)})


def whole(catalog: Catalog) -> bytes:
    return json.dumps(catalog.document()).encode()


def edited(catalog: Catalog) -> Answer:
    return Answer(body=whole(catalog).replace(b'"reload"', b'"cache"'))


def mislabelled(service: Service, new: Catalog) -> None:
    """The alias names a catalog that is for another toolchain."""
    other = factory.catalog([factory.entry(toolchain=factory.OTHER_FINGERPRINT)], toolchain=factory.OTHER_FINGERPRINT)
    service.answers[f"/v1/catalogs/{other.digest}"] = Answer(body=whole(other))
    entry = ManifestEntry(device=new.device, toolchain=new.toolchain, digest=other.digest)
    service.answers["/v1/aliases/prod"] = Answer(
        body=catalogs.canonical_json(Manifest(alias="prod", entries=(entry,)).document())
    )


def wrong_role(service: Service, new: Catalog) -> None:
    """The alias names a reference catalog as the candidate."""
    reference = factory.catalog([factory.entry()], role="reference")
    service.publish(reference)


LIES: list[tuple[str, Lie, str]] = [
    ("alias is gone", set_alias_answer(status=404), "404"),
    ("service is broken", set_alias_answer(status=500, body=b"{}"), "500"),
    ("alias is no JSON", set_alias_answer(body=b"<html>"), "not the JSON"),
    ("alias is cut off", set_alias_answer(body=b'{"alias"', promised_bytes=900), "cut off|IncompleteRead"),
    ("alias is a list", set_alias_answer(body=b"[]"), "manifest: expected an object"),
    ("alias is not modified at first", set_alias_answer(status=304), "not modified"),
    ("alias redirects to a file", set_alias_answer(status=302, headers={"Location": "file:///etc/passwd"}), "302|file"),
    ("alias redirects to itself", set_alias_answer(status=302, headers={"Location": "/v1/aliases/prod"}), "302|loop"),
    ("alias is huge", set_alias_answer(body=b" " * (5 << 20)), "more than"),
    ("another alias", set_manifest(alias="canary"), "canary"),
    ("newer manifest", set_manifest(schema_version=2), "schema_version: 2"),
    ("entries missing", set_manifest(entries=None), "entries: expected a list"),
    ("entry without digest", set_manifest(entries=[{"device": "a" * 64, "toolchain": "b" * 64}]), "digest: missing"),
    (
        "digest is a path",
        set_manifest(entries=[{"device": "a" * 64, "toolchain": "b" * 64, "digest": "../x"}]),
        "sha256",
    ),
    ("catalog is gone", set_catalog_answer(lambda _: Answer(status=404)), "404"),
    ("catalog is edited", set_catalog_answer(edited), "digest: .*edited"),
    ("catalog is another", set_catalog_answer(lambda _: Answer(body=whole(with_width(2)))), "digest: asked for"),
    ("catalog is cut off", set_catalog_answer(lambda c: Answer(body=whole(c)[:-900])), "not the JSON"),
    (
        "catalog is cut off by the network",
        set_catalog_answer(lambda c: Answer(body=whole(c)[:-900], promised_bytes=len(whole(c)))),
        "cut off|IncompleteRead",
    ),
    ("catalog is newer", set_catalog_answer(lambda c: Answer(body=b'{"schema_version":9}')), "role: missing|9"),
    ("mislabelled", mislabelled, "toolchain"),
    ("wrong role", wrong_role, "role"),
]


@pytest.mark.parametrize(("lie", "message"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
@pytest.mark.parametrize("fresh", [False, True], ids=["after a good pull", "at first"])
def test_a_service_that_lies_changes_nothing(
    service: Service, tmp_path: Path, lie: Lie, message: str, fresh: bool
) -> None:
    good, new = with_width(8), with_width(64)
    store = Store(tmp_path)
    if not fresh:
        service.publish(good)
        opened = catalogs.open(store, service.alias_url)
    service.publish(new)
    lie(service, new)
    if not fresh:
        if "not modified" in message:
            return  # then it is the truth
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
        with pytest.raises(SourceError, match=message):
            opened.refresh()
        assert opened.digest == good.digest
        assert isinstance(look(opened), Hit)
        after = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
        assert before.items() <= after.items()
        assert catalogs.open(store, service.alias_url).digest == good.digest
    else:
        with pytest.raises(SourceError, match=message):
            catalogs.open(store, service.alias_url)
        assert store.aliases() == []


def test_a_service_that_is_away_changes_nothing(tmp_path: Path, service: Service) -> None:
    good = with_width(8)
    service.publish(good)
    catalogs.pull(service.alias_url, Store(tmp_path))
    away = "http://127.0.0.1:9/v1/aliases/prod"
    opened = catalogs.open(tmp_path, away)
    assert opened.digest == good.digest
    with pytest.raises(SourceError, match="refused"):
        opened.refresh()
    assert isinstance(look(opened), Hit)
    with pytest.raises(SourceError):
        catalogs.open(tmp_path / "empty", away)


def test_a_trickle_and_a_silence_end(service: Service, tmp_path: Path) -> None:
    service.publish(with_width(8))
    service.answers["/v1/aliases/prod"].trickle = True
    with pytest.raises(SourceError, match="not all there after"):
        catalogs.pull(Source(service.alias_url, whole_timeout_seconds=0.2), Store(tmp_path))
    service.answers["/v1/aliases/prod"] = Answer(body=b"{", promised_bytes=10, trickle=True)
    service.answers["/v1/aliases/prod"].body = b"{" * 400
    with pytest.raises(SourceError):
        catalogs.pull(Source(service.alias_url, step_timeout_seconds=0.2), Store(tmp_path))
    assert Store(tmp_path).aliases() == []


def test_an_alias_without_this_device_says_what_it_has(service: Service, tmp_path: Path) -> None:
    mine = with_width(8)
    theirs = factory.catalog([factory.entry(device=factory.OTHER_DEVICE.digest)], device=factory.OTHER_DEVICE)
    service.publish(mine)
    opened = catalogs.open(tmp_path, service.alias_url)
    service.publish(theirs)
    with pytest.raises(NotStored, match=theirs.device):
        opened.refresh()
    assert opened.digest == mine.digest
    assert catalogs.open(tmp_path, service.alias_url).digest == mine.digest
    for_them = catalogs.pull(service.alias_url, Store(tmp_path / "other"), device=factory.OTHER_DEVICE)
    assert for_them.digests == (theirs.digest,)
    with pytest.raises(QueryError, match="libraries"):
        catalogs.pull(service.alias_url, Store(tmp_path / "other"), device=factory.OTHER_DEVICE, artifacts=True)


def test_libraries_come_along_when_asked_for(service: Service, tmp_path: Path) -> None:
    catalog = factory.catalog(
        [factory.entry(artifact=ARTIFACT), factory.entry(rows=2, trial="trl_2", artifact=ARTIFACT)]
    )
    service.publish(catalog)
    store = Store(tmp_path)
    assert catalogs.pull(service.alias_url, store).artifacts == ()
    sha256 = str(ARTIFACT["library_sha256"])
    with pytest.raises(NotStored):
        store.artifact(sha256, device=catalog.device)
    path = f"/v1/artifacts/{sha256}"
    service.answers[path] = Answer(body=LIBRARY + b"!")
    with pytest.raises(SourceError, match="sha256"):
        catalogs.pull(service.alias_url, store, artifacts=True)
    service.answers[path] = Answer(body=LIBRARY)
    assert catalogs.pull(service.alias_url, store, artifacts=True).artifacts == (sha256,)
    assert store.artifact(sha256, device=catalog.device).read_bytes() == LIBRARY
    count = len(service.asked)
    assert catalogs.pull(service.alias_url, store, artifacts=True).artifacts == (sha256,)
    assert service.paths()[count:] == ["prod"]
    store.artifact(sha256, device=catalog.device).write_bytes(b"bad")
    catalogs.pull(service.alias_url, store, artifacts=True)
    assert store.artifact(sha256, device=catalog.device).read_bytes() == LIBRARY


def test_a_forced_digest_is_fetched_by_itself(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = with_width(8), with_width(64)
    service.publish(old)
    service.publish(new)
    monkeypatch.setenv("TUNER_CATALOG_DIGEST", old.digest)
    assert catalogs.open(tmp_path, service.alias_url).digest == old.digest
    assert service.paths() == [old.digest]


def test_misses_become_jobs_once_each(service: Service, tmp_path: Path) -> None:
    service.publish(with_width(8))
    service.post_statuses = [503, 202]
    opened = catalogs.open(tmp_path, service.alias_url, on_miss="enqueue")
    bound = opened.bind(kernel="rms_norm", device=catalogs.this_device(), toolchain=catalogs.ANY_TOOLCHAIN)
    for _ in range(50):
        assert isinstance(bound(7, 4096), Miss)
        assert isinstance(look(opened, rows=7), Miss)
        assert isinstance(look(opened, rows=9), Miss)
        assert isinstance(look(opened), Hit)
    elsewhere = opened.bind(kernel="rms_norm", device=factory.OTHER_DEVICE, toolchain=catalogs.ANY_TOOLCHAIN)
    assert isinstance(elsewhere(7, 4096), Miss)
    assert opened.flush(WAIT_SECONDS)
    device = catalogs.this_device()
    assert [job["cases"][0]["dims"]["rows"] for job, _ in service.posted] == [7, 7, 9]
    job, key = service.posted[0]
    assert job == {
        "cases": [
            {
                "kernel": "rms_norm",
                "params": {"eps": 1e-6},
                "dims": {"rows": 7, "cols": 4096},
                "dtypes": {"x": "float32", "weight": "float32", "y": "float32"},
            }
        ],
        "device": f"cpu:{device.digest[:12]}",
        "labels": {"origin": "catalog-miss"},
    }
    assert key == service.posted[1][1] != service.posted[2][1]


def test_misses_of_a_program_that_is_not_built_in_carry_it(service: Service, tmp_path: Path) -> None:
    program = {"name": "rms_norm", "body": []}
    service.publish(factory.catalog([factory.entry()], kernels=[factory.row(program=program)]))
    opened = catalogs.open(tmp_path, service.alias_url, on_miss="enqueue")
    look(opened, rows=3)
    assert opened.flush(WAIT_SECONDS)
    case = service.posted[0][0]["cases"][0]
    assert case["program"] == program
    assert "kernel" not in case


def test_a_service_that_is_away_neither_blocks_nor_fails_a_miss(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.publish(with_width(8))
    catalogs.pull(service.alias_url, Store(tmp_path))
    opened = catalogs.open(tmp_path, "http://127.0.0.1:9/v1/aliases/prod", on_miss="enqueue")
    for rows in range(2000, 5000):
        assert isinstance(look(opened, rows=rows), Miss)
    assert opened.flush(0.0) is False, "they wait for the service"


def test_a_forked_child_sends_its_own_misses(service: Service, tmp_path: Path) -> None:
    service.publish(with_width(8))
    opened = catalogs.open(tmp_path, service.alias_url, on_miss="enqueue")
    look(opened, rows=5)
    assert opened.flush(WAIT_SECONDS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            look(opened, rows=6)
            status = 0 if opened.flush(WAIT_SECONDS) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [job["cases"][0]["dims"]["rows"] for job, _ in service.posted] == [5, 6]


def test_a_refused_job_is_not_asked_for_again(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.publish(with_width(8))
    service.post_statuses = [422]
    opened = catalogs.open(tmp_path, service.alias_url, on_miss="enqueue")
    look(opened, rows=5)
    assert opened.flush(WAIT_SECONDS)
    look(opened, rows=5)
    assert opened.flush(WAIT_SECONDS)
    assert len(service.posted) == 1
    deadline = time.monotonic() + WAIT_SECONDS
    while "422" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "422" in caplog.text

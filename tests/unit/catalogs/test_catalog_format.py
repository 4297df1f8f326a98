"""Catalog documents: what is frozen can be read, and nothing else can."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

sys.path.append(str(Path(__file__).parent))

import catalog_factory as factory

import catalogs
from catalogs import Catalog, CatalogConflict, FormatError, canonical_json, freeze, sha256_hex
from catalogs.fields import a_number
from catalogs.lines import digest_of, write_lines

Change = Callable[[dict[str, Any]], Any]


def redigested(change: Change) -> bytes:
    """A changed catalog with the digest of the changed document: only the checks of its content can refuse it."""
    document = copy.deepcopy(factory.catalog().document())
    change(document)
    document.pop("digest", None)
    return canonical_json({**document, "digest": sha256_hex(document)})


def test_freezing_is_deterministic_in_any_order() -> None:
    entries = [factory.entry(rows=n, trial=f"trl_{n}") for n in range(1, 9)]
    first = factory.catalog(entries)
    for seed in range(5):
        random.Random(seed).shuffle(entries)
        again = factory.catalog(entries)
        assert again.digest == first.digest
        assert again == first
    assert len(first.entries) == 8


def test_role_device_toolchain_and_kernels_are_part_of_the_digest() -> None:
    digests = {
        factory.catalog().digest,
        factory.catalog(role="reference").digest,
        factory.catalog(device=catalogs.this_device().digest).digest,
        factory.catalog(toolchain=factory.FINGERPRINT).digest,
        factory.catalog(kernels=[factory.row(), factory.row("softmax"), factory.row("layer_norm")]).digest,
    }
    assert len(digests) == 5


def test_document_round_trip_in_any_spelling() -> None:
    frozen = factory.catalog()
    spelled = json.dumps(frozen.document(), indent=3, sort_keys=False).encode()
    again = Catalog.from_bytes(spelled)
    assert again == frozen
    assert again.digest == frozen.digest == frozen.document()["digest"]


def test_the_digest_is_the_sha256_of_the_canonical_json_without_it() -> None:
    document = factory.catalog().document()
    stated = document.pop("digest")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert hashlib.sha256(text).hexdigest() == stated


def test_one_entry_a_line_and_the_digest_without_newlines() -> None:
    frozen = factory.catalog()
    lines = write_lines(frozen)
    assert json.loads(lines.data) == frozen.undigested()
    assert lines.data.count(b"\n") == len(frozen.entries) + 1
    for (offset, length), entry in zip(lines.spans, frozen.entries, strict=True):
        assert json.loads(lines.data[offset : offset + length]) == entry.document()
    assert digest_of(lines.data) == frozen.digest
    assert Catalog.from_bytes(lines.data, digest=frozen.digest) == frozen


def test_a_catalog_without_entries_is_one() -> None:
    empty = factory.catalog([])
    assert Catalog.from_bytes(write_lines(empty).data, digest=empty.digest) == empty


def test_the_same_winner_of_two_jobs_becomes_one_whatever_was_measured() -> None:
    slow = factory.entry(job="job_1", trial="trl_1", median_seconds=2e-5)
    fast = factory.entry(job="job_2", trial="trl_9", median_seconds=1e-5)
    frozen = factory.catalog([fast, slow, slow])
    assert [entry.trial_id for entry in frozen.entries] == ["trl_1"]
    assert frozen.entries[0].median_seconds == 2e-5


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"width": 64}, "candidate"),
        ({"numerics": {"exp": "table"}}, "numerics"),
        ({"code": {"source_sha256": factory.digest_of("else"), "artifact_sha256": "0" * 64}}, "code.source_sha256"),
    ],
)
def test_different_winners_of_one_key_are_refused_and_both_named(other: dict[str, Any], what: str) -> None:
    entries = [factory.entry(job="job_a", trial="trl_a"), factory.entry(job="job_b", trial="trl_b", **other)]
    with pytest.raises(CatalogConflict) as refused:
        factory.catalog(entries)
    for word in ("job_a", "trl_a", "job_b", "trl_b", "1024", what):
        assert word in str(refused.value)


def test_one_name_with_two_programs_is_refused() -> None:
    rows = [factory.row(), factory.row(program_digest=factory.digest_of("another"))]
    with pytest.raises(CatalogConflict, match="rms_norm"):
        factory.catalog([], kernels=rows)


def test_one_program_with_two_names_is_refused() -> None:
    same = factory.row().program_digest
    with pytest.raises(FormatError, match=r"kernels\[1\]\.program_digest.*rms_norm"):
        factory.catalog([], kernels=[factory.row(), factory.row("rms_norm_2", program_digest=same)])


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (factory.entry(device=factory.OTHER_DEVICE.digest), r"entries\[0\]\.key\.device"),
        (factory.entry(toolchain=factory.OTHER_FINGERPRINT), r"entries\[0\]\.key\.toolchain"),
        (factory.entry(median_seconds=float("nan")), "catalog"),
        (factory.entry(median_seconds=0.0), r"entries\[0\]\.median_seconds"),
        (factory.entry(plan={"score": float("inf")}), "catalog"),
        (factory.entry(plan={"score": {1, 2}}), "catalog"),
        (factory.entry(tie_set=("\ud800",)), "catalog"),
        (factory.entry(samples_sha256="x"), r"entries\[0\]\.samples_sha256"),
    ],
)
def test_entries_that_no_catalog_can_hold_are_refused_when_freezing(entry: catalogs.Entry, field: str) -> None:
    with pytest.raises(FormatError, match=field):
        factory.catalog([entry])


def test_an_unlisted_kernel_is_refused() -> None:
    with pytest.raises(FormatError, match=r"entries\[0\]\.kernel: 'rms_norm'.*not in kernels"):
        factory.catalog([factory.entry()], kernels=[factory.row("softmax")])


def set_at(*path: Any) -> Callable[[Any], Change]:
    """Set the value at a path."""

    def to(value: Any) -> Change:
        def change(document: dict[str, Any]) -> None:
            inner: Any = document
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = value

        return change

    return to


def drop(*path: Any) -> Change:
    """Remove the member at a path."""

    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]

    return change


def duplicate(document: dict[str, Any]) -> None:
    """An entry twice."""
    document["entries"].insert(1, document["entries"][0])


def second_winner(document: dict[str, Any]) -> None:
    """Two winners of one key."""
    document["entries"].insert(1, {**document["entries"][0], "median_seconds": 1.0, "job_id": "job_x"})


WRONG: list[tuple[str, Change, str]] = [
    ("newer schema", set_at("schema_version")(2), r"schema_version: 2 .*\(1 to 1\)"),
    ("newer entry", set_at("entries", 1, "schema_version")(7), r"entries\[1\]\.schema_version: 7"),
    ("schema is true", set_at("schema_version")(True), "schema_version: True"),
    ("schema is text", set_at("schema_version")("1"), "schema_version"),
    ("schema is zero", set_at("schema_version")(0), "schema_version: 0"),
    ("wrong role", set_at("role")("winner"), r"role: .*'candidate' or 'reference'.*'winner'"),
    ("role is a list", set_at("role")([]), "role"),
    ("device is short", set_at("device")("abc"), "device: expected a sha256"),
    ("another device", set_at("device")(factory.OTHER_DEVICE.digest), "device: .*device_identity"),
    ("toolchain", set_at("toolchain")("0" * 64), "toolchain: .*toolchain_description"),
    ("toolchain edited", set_at("toolchain_description", "compiler")("gcc 99"), "toolchain: .*toolchain_description"),
    ("identity edited", set_at("device_identity", "identity", "architecture")("z80"), "device: .*device_identity"),
    ("identity extended", set_at("device_identity", "name")("fast"), "device_identity: .*nothing else"),
    ("identity is a list", set_at("device_identity")([]), "device_identity: expected an object"),
    ("entries is an object", set_at("entries")({}), "entries: expected a list"),
    ("kernels is null", set_at("kernels")(None), "kernels: expected a list"),
    ("entry is null", set_at("entries", 0)(None), r"entries\[0\]: expected an object"),
    ("duplicate entry", duplicate, r"entries\[1\]\.key: the same key"),
    ("two winners", second_winner, r"entries\[1\]\.key: the same key.*job_1.*job_x"),
    ("reordered entries", lambda d: d["entries"].reverse(), r"entries\[\d\]: out of order"),
    ("reordered kernels", lambda d: d["kernels"].reverse(), r"kernels\[1\]: out of order"),
    ("kernel twice", lambda d: d["kernels"].insert(0, d["kernels"][0]), r"kernels\[1\]: .*listed twice"),
    ("no kernels", set_at("kernels")([]), r"entries\[0\]\.kernel"),
    ("kernel digest", set_at("kernels", 0, "program_digest")("a" * 64), r"entries\[0\]\.key\.program_digest"),
    ("kernel dims", set_at("kernels", 0, "dims")(["rows"]), r"entries\[0\]\.key\.dims"),
    ("kernel dims twice", set_at("kernels", 0, "dims")(["rows", "rows"]), r"kernels\[0\]\.dims"),
    ("kernel dtypes", set_at("kernels", 0, "dtypes")({"x": "float32"}), r"kernels\[0\]\.like\.|entries\[0\]"),
    ("kernel like", set_at("kernels", 0, "like")({"z": "x"}), r"kernels\[0\]\.like\.z"),
    ("kernel like empty", set_at("kernels", 0, "like")({}), r"kernels\[0\]: empty"),
    ("kernel params nan-like", set_at("kernels", 0, "params", "eps")("1e-6"), r"kernels\[0\]\.params\.eps"),
    ("kernel default unknown", set_at("kernels", 0, "param_defaults", "beta")(1), r"param_defaults\.beta"),
    ("unknown key field", set_at("entries", 0, "key", "colour")(1), r"entries\[0\]\.key\.colour: not a key field"),
    ("missing key field", drop("entries", 0, "key", "device"), r"entries\[0\]\.key\.device: missing"),
    ("defaulted key field", drop("entries", 0, "key", "threads"), r"entries\[0\]: .*in full"),
    ("empty key extra", set_at("entries", 0, "key", "extra")({}), r"entries\[0\]: .*empty"),
    ("null artifact", set_at("entries", 0, "artifact")(None), r"entries\[0\]: .*empty"),
    ("artifact", set_at("entries", 0, "artifact")({"symbol": "f"}), r"entries\[0\]\.artifact\.library_sha256: missing"),
    ("dim is zero", set_at("entries", 0, "key", "dims", "rows")(0), r"entries\[0\]\.key\.dims\.rows"),
    ("dim is a float", set_at("entries", 0, "key", "dims", "rows")(4.0), r"entries\[0\]\.key\.dims\.rows"),
    ("dim is true", set_at("entries", 0, "key", "dims", "rows")(True), r"entries\[0\]\.key\.dims\.rows"),
    ("dim is huge", set_at("entries", 0, "key", "dims", "rows")(2**70), r"entries\[0\]\.key\.dims\.rows"),
    ("dtype is null", set_at("entries", 0, "key", "dtypes", "x")(None), r"entries\[0\]\.key\.dtypes\.x"),
    ("metric differs", set_at("entries", 0, "metric")("e2e_batch"), r"entries\[0\]\.metric"),
    ("median is text", set_at("entries", 0, "median_seconds")("1"), r"entries\[0\]\.median_seconds"),
    ("median is negative", set_at("entries", 0, "median_seconds")(-1.0), r"entries\[0\]\.median_seconds"),
    ("tie set is text", set_at("entries", 0, "tie_set")("trl_1"), r"entries\[0\]\.tie_set"),
    ("tie set of numbers", set_at("entries", 0, "tie_set")([1]), r"entries\[0\]\.tie_set\[0\]"),
    ("candidate is a list", set_at("entries", 0, "candidate")([]), r"entries\[0\]\.candidate"),
    *(
        (f"hollow {name}", set_at("entries", 0, name)({}), rf"^entries\[0\]\.{name}\.{first}: missing")
        for name, first in (
            ("candidate", "width"),
            ("plan", "private_scalars"),
            ("code", "source_sha256"),
            ("protocol", "name"),
        )
    ),
    *(
        (f"no {part}.{name}", drop("entries", 0, part, name), rf"^entries\[0\]\.{part}\.{name}: missing")
        for part, names in (
            ("candidate", ("vector", "unroll", "partials", "input", "fusion", "materialize", "mapping")),
            ("code", ("artifact_sha256",)),
        )
        for name in names
    ),
    ("hollow numerics", set_at("entries", 0, "numerics")({}), r"^entries\[0\]\.numerics: .*code\.numerics"),
    ("no tie", set_at("entries", 0, "tie_set")([]), r"^entries\[0\]\.tie_set: .*at least one trial"),
    ("source digest", set_at("entries", 0, "code", "source_sha256")("zz"), r"\.code\.source_sha256"),
    ("artifact digest", set_at("entries", 0, "code", "artifact_sha256")(None), r"\.code\.artifact_sha256"),
    ("width is zero", set_at("entries", 0, "candidate", "width")(0), r"\.candidate\.width"),
    ("width is true", set_at("entries", 0, "candidate", "width")(True), r"\.candidate\.width"),
    ("input is hollow", set_at("entries", 0, "candidate", "input")({}), r"\.candidate\.input"),
    ("input of a number", set_at("entries", 0, "candidate", "input")({"x": 1}), r"\.candidate\.input\.x"),
    ("algorithm is hollow", set_at("entries", 0, "candidate", "algorithm")(""), r"\.candidate\.algorithm"),
    ("mapping is text", set_at("entries", 0, "candidate", "mapping")("cpu"), r"\.candidate\.mapping"),
    ("private is negative", set_at("entries", 0, "plan", "private_scalars")(-1), r"\.plan\.private_scalars"),
    ("protocol is nameless", set_at("entries", 0, "protocol", "name")(""), r"\.protocol\.name"),
    ("params is true", set_at("entries", 0, "params")({"eps": True}), r"entries\[0\]\.params\.eps"),
    ("other params", set_at("entries", 0, "params")({"eps": 1e-5}), r"entries\[0\]\.kernel"),
    *((f"no {n}", drop(n), f"^{n}: missing") for n in ("schema_version", "role", "device", "toolchain", "entries")),
    *(
        (f"no entry {name}", drop("entries", 0, name), rf"^entries\[0\]\.{name}: missing")
        for name in ("key", "candidate", "plan", "code", "protocol", "samples_sha256", "tie_set", "job_id", "trial_id")
    ),
]


@pytest.mark.parametrize(("change", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_catalog_is_refused_by_field_even_with_a_fitting_digest(change: Change, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Catalog.from_bytes(redigested(change))


def test_inputs_may_be_named_one_by_one_and_code_without_numerics_needs_none() -> None:
    whole = factory.entry()
    named = {**whole.candidate, "input": {"x": "cache"}}
    code = {name: value for name, value in whole.code.items() if name != "numerics"}
    [kept] = factory.catalog([factory.entry(candidate=named, code=code, numerics={})]).entries
    assert (kept.candidate["input"], kept.numerics) == ({"x": "cache"}, {})


def test_an_edited_value_does_not_fit_the_digest() -> None:
    document = factory.catalog().document()
    document["entries"][0]["median_seconds"] *= 0.5
    with pytest.raises(FormatError, match=r"digest: .*edited"):
        Catalog.from_document(document)


def test_a_digest_is_needed_and_the_asked_one_counts() -> None:
    frozen = factory.catalog()
    with pytest.raises(FormatError, match="digest: missing"):
        Catalog.from_document(frozen.undigested())
    with pytest.raises(FormatError, match="digest: asked for 0000"):
        Catalog.from_document(frozen.document(), digest="0" * 64)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a":1,"a":1}',
        b'{"schema_version":NaN}',
        b'{"schema_version":1e999}',
        b"[" * 100_000,
        b'{"schema_version":' + b"9" * 10_000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Catalog.from_bytes(data)


def test_unknown_members_stay_in_the_digest_and_are_ignored_otherwise() -> None:
    def extend(document: dict[str, Any]) -> None:
        document["frozen_by"] = {"team": "kernels"}
        document["kernels"][0]["summary"] = "a kernel"
        document["entries"][0]["power_watts"] = 3.5

    data = redigested(extend)
    extended = Catalog.from_bytes(data)
    assert extended.digest == json.loads(data)["digest"] != factory.catalog().digest
    assert extended.entries[0].candidate == factory.catalog().entries[0].candidate
    assert extended.entries[0].extra == {"power_watts": 3.5}
    assert Catalog.from_bytes(write_lines(extended).data, digest=extended.digest) == extended
    refrozen = freeze(
        extended.entries,
        role=extended.role,
        kernels=extended.kernels,
        device=catalogs.this_device(),
        toolchain=factory.TOOLCHAIN,
    )
    assert refrozen.entries == extended.entries


SCHEMA = json.loads((Path(catalogs.__file__).parent / "schema" / "catalog-v1.json").read_text())


def test_the_schema_file_accepts_what_is_frozen() -> None:
    validator = Draft202012Validator(SCHEMA)
    artifact = {"library_sha256": "a" * 64, "symbol": "f", "arguments": [{"name": "x", "kind": "tensor"}]}
    named = {**factory.entry().candidate, "input": {"x": "cache"}}
    frozen = factory.catalog([factory.entry(artifact=artifact, candidate=named, key={"extra": {"block": 1}})])
    for document in (frozen.document(), frozen.undigested(), factory.catalog().document()):
        assert [error.message for error in validator.iter_errors(document)] == []


def test_the_schema_file_and_the_reader_refuse_the_same_wrong_values() -> None:
    validator = Draft202012Validator(SCHEMA)
    beyond_schema = {
        *("another device", "toolchain", "toolchain edited", "identity edited", "duplicate entry", "two winners"),
        *("reordered entries", "reordered kernels", "kernel twice", "no kernels", "kernel digest", "kernel dims"),
        *("kernel dtypes", "kernel like", "kernel default unknown", "metric differs", "other params", "dim is huge"),
        *("dim is a float",),  # JSON Schema calls 4.0 an integer
    }
    for name, change, _ in WRONG:
        accepted = validator.is_valid(json.loads(redigested(change)))
        assert accepted == (name in beyond_schema), name


def test_an_integer_beyond_every_float_is_refused_by_field() -> None:
    with pytest.raises(FormatError, match="median_seconds"):
        a_number(10**400, "median_seconds")

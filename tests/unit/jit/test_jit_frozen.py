"""What is refused before anything is built: other devices, other programs, misses, and words that cannot be meant."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "catalogs"))

import catalog_factory as factory

import catalogs
from catalogs import ANY_TOOLCHAIN, Entry, Miss
from search import jit
from search.errors import InvalidInput
from search.jit.cache import Cache, default_folder, frozen_key
from search.jit.explicit import explicit_candidate
from search.jit.frozen import thaw
from search.lowering.contract import Artifact, BuildRequest
from search.program.digest import program_digest
from search.program.document import dump_program
from search.program.library import kernels
from search.program.resolve import resolve_case

ROOT = Path(__file__).parents[3]
CASE = resolve_case({"kernel": "rms_norm", "dims": {"rows": 1024, "cols": 4096}})


def frozen_entry(**changes: Any) -> Entry:
    """An entry of the built-in rms_norm."""
    made = factory.entry()
    key = replace(made.key, program_digest=program_digest(CASE.program, CASE.params))
    return replace(made, **{"key": key, **changes})


def own_entry(**changes: Any) -> tuple[Entry, dict[str, Any]]:
    """An entry of a program that is not built in, and that program."""
    program = {**dump_program(kernels()["rms_norm"].program), "name": "my_norm"}
    return frozen_entry(kernel="my_norm", **changes), program


def fields_of(error: pytest.ExceptionInfo[InvalidInput]) -> set[str]:
    return {problem.field for problem in error.value.problems}


def test_an_entry_of_this_machine_and_program_is_taken_as_it_is() -> None:
    frozen = thaw(frozen_entry(), program=None, table=None)
    assert frozen.case == CASE
    assert frozen.candidate.document() == dict(frozen_entry().candidate)
    assert frozen.library() is None


def test_another_device_is_refused_with_both_digests() -> None:
    entry = frozen_entry()
    foreign = replace(entry, key=replace(entry.key, device=factory.OTHER_DEVICE.digest))
    with pytest.raises(jit.OtherDevice) as caught:
        jit.build(foreign)
    assert caught.value.frozen == factory.OTHER_DEVICE.digest
    assert caught.value.found == catalogs.this_device().digest
    assert caught.value.frozen in str(caught.value)
    assert caught.value.found in str(caught.value)


def test_a_kernel_that_computes_something_else_now_is_refused() -> None:
    entry = frozen_entry()
    with pytest.raises(jit.ProgramChanged) as caught:
        jit.build(replace(entry, key=replace(entry.key, program_digest="c" * 64)))
    assert caught.value.frozen == "c" * 64
    with pytest.raises(jit.ProgramChanged):
        jit.build(replace(entry, params={"eps": 1e-3}))


def test_a_program_of_ones_own_comes_from_the_kernels_table_the_caller_or_the_entry() -> None:
    entry, program = own_entry()
    with pytest.raises(InvalidInput, match="catalog=, or program="):
        thaw(entry, program=None, table=None)
    row = factory.row("my_norm", program_digest=entry.key.program_digest, program=program)
    catalog = factory.catalog([entry], kernels=[row])
    other = factory.catalog([], kernels=[replace(row, program_digest="d" * 64)])
    with pytest.raises(InvalidInput):
        thaw(entry, program=None, table=other)
    found = [
        thaw(entry, program=program, table=None),
        thaw(entry, program=None, table=catalog),
        thaw(entry, program=None, table=catalogs.open(catalog).snapshot),
        thaw(replace(entry, extra={"program": program}), program=None, table=None),
    ]
    assert {frozen.case.kernel for frozen in found} == {"my_norm"}
    assert {program_digest(frozen.case.program, frozen.case.params) for frozen in found} == {entry.key.program_digest}


def test_a_program_frozen_before_its_name_was_built_in_is_still_served() -> None:
    """The catalog has the program: a kernel that took its name in a later version changes nothing."""
    program = {**dump_program(kernels()["rms_norm"].program), "name": "softmax"}
    entry = frozen_entry(kernel="softmax")
    row = factory.row("softmax", program_digest=entry.key.program_digest, program=program)
    frozen = thaw(entry, program=None, table=factory.catalog([entry], kernels=[row]))
    assert program_digest(frozen.case.program, frozen.case.params) == entry.key.program_digest
    assert frozen.case.from_document
    with pytest.raises(InvalidInput):
        thaw(entry, program=None, table=None)


def test_a_wrong_program_is_refused() -> None:
    entry, program = own_entry()
    changed = {
        **program,
        "body": [*program["body"][:-1], {"store": {"tensor": "y", "over": ["col"], "value": "x * rstd"}}],
    }
    changed["tensors"] = {name: tensor for name, tensor in program["tensors"].items() if name != "weight"}
    smaller = replace(entry, key=replace(entry.key, dtypes={"x": "float32", "y": "float32"}))
    with pytest.raises(jit.ProgramChanged):
        thaw(smaller, program=changed, table=None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"candidate": {"width": 16}}, "/candidate"),
        ({"candidate": {**frozen_entry().candidate, "warps": 2}}, "/candidate"),
        (
            {"candidate": {**frozen_entry().candidate, "mapping": {"rows_per_block": 1, "min_blocks": 0}}},
            "/candidate/mapping",
        ),
        ({"code": {"source_sha256": "a" * 64}}, "/code/artifact_sha256"),
        ({"code": {}}, "/code/source_sha256"),
    ],
)
def test_an_entry_that_this_version_cannot_read_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        jit.build(frozen_entry(**changes))
    assert fields_of(caught) == {field}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"threads": 2}, {"/key/threads"}),
        ({"aliasing": "inplace"}, {"/key/aliasing"}),
        ({"threads": 4, "aliasing": "may"}, {"/key/threads", "/key/aliasing"}),
    ],
)
def test_a_winner_that_is_called_otherwise_is_refused(changes: dict[str, Any], fields: set[str]) -> None:
    entry = frozen_entry()
    with pytest.raises(InvalidInput) as caught:
        jit.build(replace(entry, key=replace(entry.key, **changes)))
    assert fields_of(caught) == fields


def test_the_key_of_frozen_code_is_of_what_was_asked_for_too() -> None:
    candidate = dict(frozen_entry().candidate)
    asked: dict[str, Any] = {"program_digest": "a" * 64, "source_sha256": "b" * 64, "artifact_sha256": "c" * 64}
    request = BuildRequest(id="1", case=CASE.document(), candidate=candidate)
    wider = resolve_case({"kernel": "rms_norm", "dims": {"rows": 1024, "cols": 4097}}).document()
    keys = [
        frozen_key(request, **asked),
        frozen_key(replace(request, case=wider), **asked),
        frozen_key(replace(request, candidate={**candidate, "width": 8}), **asked),
        *(frozen_key(request, **{**asked, name: "d" * 64}) for name in asked),
    ]
    assert len(set(keys)) == len(keys)
    assert frozen_key(replace(request, id="2"), **asked) == keys[0], "the id is the caller's"


def test_arguments_of_an_unknown_form_are_refused() -> None:
    artifact = {
        "library_sha256": "a" * 64,
        "symbol": "k",
        "arguments": [{"name": "x", "kind": "tensor", "stride": "1"}],
    }
    with pytest.raises(InvalidInput) as caught:
        thaw(frozen_entry(artifact=artifact), program=None, table=None).library()
    assert fields_of(caught) == {"/artifact/arguments"}


def test_a_miss_is_not_built_and_says_why_it_is_one() -> None:
    opened = catalogs.open(factory.catalog())
    asked = {"kernel": "rms_norm", "dims": {"rows": 3, "cols": 4096}}
    miss = opened.lookup(**asked, device=catalogs.this_device(), toolchain=ANY_TOOLCHAIN)
    assert isinstance(miss, Miss)
    with pytest.raises(InvalidInput, match=r"dims\.rows"):
        jit.build(miss)
    with pytest.raises(InvalidInput, match=r"dims\.rows"):
        jit.build_all([miss])


@pytest.mark.parametrize("what", [None, 3, ["rms_norm"], b"rms_norm"])
def test_what_is_no_kernel_is_refused(what: Any) -> None:
    with pytest.raises(InvalidInput):
        jit.build(what, dims={"rows": 4, "cols": 4})
    with pytest.raises(InvalidInput):
        jit.build_all([what])


@pytest.mark.parametrize("words", [{"dims": {"rows": 1}}, {"candidate": {"width": 8}}, {"params": {}}, {"dtypes": {}}])
def test_a_frozen_winner_takes_no_parameters(words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        jit.build(frozen_entry(), **words)
    assert fields_of(caught) == {f"/{name}" for name in words}


def test_some_knobs_are_completed_from_the_default() -> None:
    chosen = explicit_candidate(CASE, {"width": 16, "mapping": {"row_block": 2}, "simd_scope": "all"})
    document = chosen.document()
    assert document["mapping"] == {"local_lanes": 16, "row_block": 2, "simd_scope": "all", "nontemporal": False}
    assert explicit_candidate(CASE, chosen) == chosen
    assert explicit_candidate(CASE, document) == chosen
    assert explicit_candidate(CASE, None).width == 32


@pytest.mark.parametrize(
    ("candidate", "field"),
    [
        ({"width": 3}, "/candidate/width"),
        ({"width": [16]}, "/candidate/width"),
        ({"rows_per_block": 2}, "/candidate/rows_per_block"),
        ({"input": {"weight": "cache"}}, "/candidate/input/weight"),
        ({"mapping": 3}, "/candidate/mapping"),
        ("fast", "/candidate"),
    ],
)
def test_a_wrong_knob_is_named(candidate: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        explicit_candidate(CASE, candidate)
    assert fields_of(caught) == {field}


def test_any_rows_is_refused_where_it_would_be_wrong() -> None:
    program = {
        "name": "square",
        "dims": ["rows"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "rows", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [{"store": {"tensor": "y", "over": ["col"], "value": "x + 1"}}],
    }
    with pytest.raises(InvalidInput) as caught:
        jit.build(program, dims={"rows": 4}, any_rows=True, may_compile=False)
    assert fields_of(caught) == {"/any_rows"}


def test_the_cache_keeps_what_is_whole(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "a")
    sha256, path = "", tmp_path / "a" / "libraries"
    path.mkdir(parents=True)
    sha256 = factory.digest_of("library")
    (path / f"{sha256}.so").write_bytes(b"library")
    artifact = Artifact(
        source_sha256="a" * 64, artifact_sha256="b" * 64, library_path="elsewhere", library_sha256=sha256, symbol="k",
        arguments=(),
    )  # fmt: skip
    assert cache.find("1" * 64) is None
    cache.keep("1" * 64, artifact)
    assert cache.find("1" * 64) == replace(artifact, library_path=str(path / f"{sha256}.so"))
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Cache(tmp_path / "b")
    assert moved.find("1" * 64) is not None
    (tmp_path / "b" / "libraries" / f"{sha256}.so").write_bytes(b"librarY")
    assert moved.find("1" * 64) is None
    assert not (tmp_path / "b" / "libraries" / f"{sha256}.so").exists(), "it would be taken for the right one"
    (tmp_path / "b" / "jit" / f"{'1' * 64}.json").write_text('{"symbol": ')
    assert moved.find("1" * 64) is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_JIT_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("TUNER_JIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "tuner" / "jit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "tuner" / "jit"


def test_importing_brings_in_no_array_library_and_no_compiler() -> None:
    code = (
        "import sys, search.jit; "
        "print(sorted({'torch', 'numpy', 'tilelang', 'tvm', 'pydantic', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

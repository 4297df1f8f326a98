"""Building kernels for real: compiled once, found again, pulled, and refused when anything is not as frozen."""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

import jit_catalog as made

import catalogs
from catalogs import ANY_TOOLCHAIN, Entry, Hit, OpenCatalog, this_device
from search import jit
from search.errors import InvalidInput
from search.jit import Kernel
from search.program.digest import program_digest
from search.program.resolve import resolve_case

pytestmark = pytest.mark.toolchain
ROOT = Path(__file__).parents[2]
ROWS, COLS = 24, 100


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jit")


@pytest.fixture(scope="module")
def kernels(cache: Path) -> dict[str, Kernel]:
    """Three built-in kernels and one that is not, compiled here."""
    out = {}
    for what in ("rms_norm", "softmax", "layer_norm", made.SCALED):
        kernel = jit.build(what, dims={"rows": ROWS, "cols": COLS}, candidate={"width": 16}, store_dir=cache)
        assert kernel.built.origin == "compiled"
        out[kernel.name] = kernel
    return out


@pytest.fixture(scope="module")
def opened(kernels: dict[str, Kernel]) -> OpenCatalog:
    return catalogs.open(made.catalog_of(*kernels.values()))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, starting the compiling child is an error."""

    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a compiler was started")

    monkeypatch.setattr("search.jit.building.Builder", never)


def hit_of(opened: OpenCatalog, name: str, **dims: int) -> Hit:
    asked = {"rows": ROWS, "cols": COLS, **dims}
    found = opened.lookup(kernel=name, dims=asked, device=this_device(), toolchain=ANY_TOOLCHAIN)
    assert isinstance(found, Hit), found
    return found


def check(kernel: Kernel, *, rows: int | None = None) -> None:
    """The kernel computes what its program says."""
    inputs = made.inputs_of(kernel, rows=rows)
    outputs = kernel(**inputs)
    wanted = made.oracle(kernel, inputs, rows=rows)
    names = [kernel.signature.tensors[place].name for place in kernel.signature.outputs]
    for name, output in zip(names, outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
        np.testing.assert_allclose(output, wanted[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "layer_norm", "scaled_rows"])
def test_a_hit_computes_what_its_program_says_and_compiles_nothing(
    name: str, opened: OpenCatalog, cache: Path, no_compiler: None
) -> None:
    hit = hit_of(opened, name)
    kernel = jit.build(hit, catalog=opened, store_dir=cache)
    assert kernel.built.origin == "cached"
    assert kernel.built.entry is hit.entry
    check(kernel)


def test_all_hits_at_once_are_compiled_in_one_child(
    opened: OpenCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    real = jit.build.__globals__["Builder"]
    monkeypatch.setattr("search.jit.building.Builder", lambda *a, **k: started.append(1) or real(*a, **k))
    hits = [hit_of(opened, name) for name in ("softmax", "scaled_rows", "rms_norm")]
    built = jit.build_all(hits, catalog=opened, store_dir=tmp_path)
    assert [kernel.name for kernel in built] == ["softmax", "scaled_rows", "rms_norm"]
    assert [kernel.built.origin for kernel in built] == ["compiled"] * 3
    assert len(started) == 1
    for kernel in built:
        check(kernel)
    assert {k.built.origin for k in jit.build_all(hits, catalog=opened, store_dir=tmp_path)} == {"cached"}
    assert len(started) == 1


def test_explicit_parameters_are_found_again_by_case_candidate_and_toolchain(
    kernels: dict[str, Kernel], cache: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"dims": {"rows": ROWS, "cols": COLS}, "store_dir": cache}
    again = jit.build("rms_norm", candidate={"width": 16}, **asked)
    assert again.built.origin == "cached"
    assert again.built.artifact == kernels["rms_norm"].built.artifact
    with pytest.raises(AssertionError, match="compiler was started"):
        jit.build("rms_norm", candidate={"width": 16, "simd_scope": "main"}, **asked)
    with pytest.raises(AssertionError, match="compiler was started"):
        jit.build("rms_norm", candidate={"width": 16}, params={"eps": 1e-3}, **asked)
    monkeypatch.setattr("search.jit.cache.toolchain.fingerprint", lambda **_: {"compiler": "another"})
    with pytest.raises(AssertionError, match="compiler was started"):
        jit.build("rms_norm", candidate={"width": 16}, **asked)


def test_any_rows_are_right_where_they_are_taken(opened: OpenCatalog, cache: Path) -> None:
    kernel = jit.build(hit_of(opened, "layer_norm"), store_dir=cache, any_rows=True)
    for rows in (1, 5, ROWS, 77):
        check(kernel, rows=rows)


def test_threads_may_share_a_kernel(kernels: dict[str, Kernel]) -> None:
    kernel = kernels["softmax"]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        inputs = made.inputs_of(kernel, seed=seed)
        wanted = kernel(**inputs)
        out = np.empty_like(wanted)
        for _ in range(200):
            out.fill(np.nan)
            kernel(inputs["x"], out)
            if not np.array_equal(out, wanted):
                wrong.append(seed)
                return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_native_code_runs_without_the_interpreter_lock(kernels: dict[str, Kernel]) -> None:
    assert not kernels["softmax"]._function._flags_ & _ctypes.FUNCFLAG_PYTHONAPI


_SERVING = """
import os, sys
for name in ("tilelang", "tvm"):
    sys.modules[name] = None  # as if it were not installed
import catalogs
from catalogs import ANY_TOOLCHAIN, this_device
from search import jit
import numpy as np
store, cache, rows, cols = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
opened = catalogs.open(store)
hit = opened.lookup(
    kernel="softmax", dims={"rows": rows, "cols": cols}, device=this_device(), toolchain=ANY_TOOLCHAIN
)
kernel = jit.build(hit, artifacts=store, store_dir=cache, may_compile=False)
assert kernel.built.origin == "pulled", kernel
assert "torch" not in sys.modules
x = np.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32)
y = kernel(x)
assert np.allclose(y.sum(axis=1), 1, atol=1e-5)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(kernel(x), y) else 1)
assert os.waitpid(child, 0)[1] == 0
print("served")
"""


def test_a_pulled_library_needs_no_compiler_and_survives_a_fork(
    kernels: dict[str, Kernel], opened: OpenCatalog, tmp_path: Path
) -> None:
    store = made.pulled_store(tmp_path / "store", made.catalog_of(kernels["softmax"]), kernels["softmax"])
    words = [sys.executable, "-c", _SERVING, str(store.folder), str(tmp_path / "none"), str(ROWS), str(COLS)]
    done = subprocess.run(
        words, env={"PATH": "", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("served\n", 0), done.stderr
    assert not (tmp_path / "none").exists()


def test_what_was_not_pulled_is_not_compiled_when_that_is_not_allowed(
    opened: OpenCatalog, tmp_path: Path, no_compiler: None
) -> None:
    with pytest.raises(jit.NotCompiled, match="softmax"):
        jit.build(hit_of(opened, "softmax"), artifacts=tmp_path / "empty", store_dir=tmp_path, may_compile=False)


def test_a_damaged_pulled_library_is_refused(kernels: dict[str, Kernel], opened: OpenCatalog, tmp_path: Path) -> None:
    kernel = kernels["softmax"]
    store = made.pulled_store(tmp_path, made.catalog_of(kernel), kernel)
    library = store.artifact(kernel.built.artifact.library_sha256, device=this_device().digest)
    library.write_bytes(library.read_bytes()[:-1] + b"?")
    with pytest.raises(catalogs.FormatError, match="damaged"):
        jit.build(hit_of(opened, "softmax"), artifacts=store, store_dir=tmp_path / "cache")


def test_a_damaged_library_of_the_cache_is_built_anew(
    kernels: dict[str, Kernel], opened: OpenCatalog, cache: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "cache"
    shutil.copytree(cache, mine)
    library = mine / "libraries" / f"{kernels['softmax'].built.artifact.library_sha256}.so"
    library.write_bytes(b"\0" * library.stat().st_size)
    kernel = jit.build(hit_of(opened, "softmax"), store_dir=mine)
    assert kernel.built.origin == "compiled"
    check(kernel)


def test_a_source_that_is_not_the_frozen_one_is_refused_with_both_hashes(
    kernels: dict[str, Kernel], cache: Path
) -> None:
    kernel, frozen = kernels["rms_norm"], "a" * 64
    artifact = kernel.built.artifact
    entry = made.entry_of(kernel, code={"source_sha256": frozen, "artifact_sha256": artifact.artifact_sha256})
    with pytest.raises(jit.SourceChanged) as caught:
        jit.build(entry, store_dir=cache)
    assert (caught.value.frozen, caught.value.found) == (frozen, artifact.source_sha256)
    assert frozen in str(caught.value)
    assert artifact.source_sha256 in str(caught.value)


def test_other_machine_code_is_refused_unless_it_is_allowed_out_loud(kernels: dict[str, Kernel], cache: Path) -> None:
    kernel, frozen = kernels["rms_norm"], "b" * 64
    artifact = kernel.built.artifact
    entry = made.entry_of(kernel, code={"source_sha256": artifact.source_sha256, "artifact_sha256": frozen})
    with pytest.raises(jit.MachineCodeChanged) as caught:
        jit.build(entry, store_dir=cache)
    assert (caught.value.frozen, caught.value.found) == (frozen, artifact.artifact_sha256)
    allowed = jit.build(entry, store_dir=cache, allow_other_machine_code=True)
    assert allowed.built.origin == "cached"
    check(allowed)


def test_a_library_that_is_not_what_its_record_says_is_not_called(
    kernels: dict[str, Kernel], opened: OpenCatalog, tmp_path: Path
) -> None:
    kernel = kernels["softmax"]
    store = made.pulled_store(tmp_path, made.catalog_of(kernel), kernel)
    named = {
        "library_sha256": kernel.built.artifact.library_sha256,
        "symbol": "k_other",
        "arguments": [vars(argument) for argument in kernel.built.artifact.arguments],
    }
    with pytest.raises(jit.LoadFailed, match="k_other"):
        jit.build(made.entry_of(kernel, artifact=named), artifacts=store, store_dir=tmp_path)
    named = {**named, "symbol": kernel.built.artifact.symbol, "arguments": named["arguments"][:-1] * 2}
    with pytest.raises(jit.LoadFailed, match="arguments"):
        jit.build(made.entry_of(kernel, artifact=named), artifacts=store, store_dir=tmp_path)


def edited(entry: Entry, **changes: Any) -> Entry:
    """The entry with other dims, params or knobs, made consistent where an editor would."""
    key = replace(entry.key, dims={**entry.key.dims, **changes.pop("dims", {})})
    made_of = replace(entry, key=key, **changes)
    case = resolve_case({"kernel": made_of.kernel, "dims": dict(key.dims), "params": dict(made_of.params)})
    return replace(made_of, key=replace(key, program_digest=program_digest(case.program, case.params)))


def edits(entry: Entry) -> dict[str, Entry]:
    mapping = {**entry.candidate["mapping"], "row_block": 2}
    return {
        "dims": edited(entry, dims={"cols": COLS + 1}),
        "params": edited(entry, params={"eps": 1e-2}),
        "width": edited(entry, candidate={**entry.candidate, "width": 32}),
        "mapping": edited(entry, candidate={**entry.candidate, "mapping": mapping}),
    }


@pytest.mark.parametrize("what", ["dims", "params", "width", "mapping"])
def test_an_edited_entry_gets_no_kernel_of_a_warm_cache(
    what: str, kernels: dict[str, Kernel], cache: Path, tmp_path: Path
) -> None:
    warm = tmp_path / "cache"
    shutil.copytree(cache, warm)
    entry = made.entry_of(kernels["rms_norm"])
    wrong = edits(entry)[what]
    with pytest.raises(jit.NotCompiled):
        jit.build(wrong, store_dir=warm, may_compile=False)
    for _ in range(2):  # the second time, what the first has built is in the cache
        with pytest.raises(jit.SourceChanged) as caught:
            jit.build(wrong, store_dir=warm)
        assert caught.value.frozen == entry.code["source_sha256"]
    assert jit.build(entry, store_dir=warm, may_compile=False).built.origin == "cached"


@pytest.mark.parametrize("what", ["dims", "params", "width", "mapping"])
@pytest.mark.parametrize("texts", [True, False], ids=["with text", "plan alone"])
def test_an_edited_entry_gets_no_pulled_library(
    what: str, texts: bool, kernels: dict[str, Kernel], tmp_path: Path, no_compiler: None
) -> None:
    kernel = kernels["rms_norm"]
    store = made.pulled_store(tmp_path / "store", made.catalog_of(kernel), kernel)
    entry = made.entry_of(kernel)
    if not texts:
        entry = replace(entry, code={k: v for k, v in entry.code.items() if k != "tilelang_sha256"})
    asked: dict[str, Any] = {"artifacts": store, "store_dir": tmp_path / "cache", "may_compile": False}
    assert jit.build(entry, **asked).built.origin == "pulled"
    wrong = edits(entry)[what]
    if what in ("dims", "mapping"):  # the others leave the plan's facts as they are
        with pytest.raises(jit.PlanChanged):
            jit.build(wrong, **asked)
    elif texts:
        with pytest.raises(jit.TextChanged):
            jit.build(wrong, **asked)
    else:  # what an older entry leaves to the catalog's digest
        with pytest.raises(InvalidInput, match="not an entry of the catalog"):
            jit.build(wrong, catalog=made.catalog_of(kernel), **asked)


def test_a_pulled_library_is_for_an_entry_of_the_catalog_that_is_given(
    kernels: dict[str, Kernel], opened: OpenCatalog, tmp_path: Path, no_compiler: None
) -> None:
    kernel = kernels["softmax"]
    catalog = made.catalog_of(kernel)
    store = made.pulled_store(tmp_path / "store", catalog, kernel)
    asked: dict[str, Any] = {"artifacts": store, "store_dir": tmp_path / "cache", "may_compile": False}
    entry = made.entry_of(kernel)
    for whose in (catalog, opened, catalogs.open(catalog)):
        assert jit.build(entry, catalog=whose, **asked).built.origin == "pulled"
        with pytest.raises(InvalidInput, match="not an entry of the catalog"):
            jit.build(replace(entry, trial_id="trl_2"), catalog=whose, **asked)
    other = made.catalog_of(kernels["rms_norm"])
    for whose in (other, catalogs.open(other)):
        with pytest.raises(InvalidInput, match="not an entry of the catalog"):
            jit.build(entry, catalog=whose, **asked)


def test_two_processes_may_build_the_same_at_once(tmp_path: Path) -> None:
    build = f"jit.build('softmax', dims={{'rows': 8, 'cols': 40}}, store_dir={str(tmp_path)!r})"
    code = f"from search import jit; print({build}.built.artifact.library_sha256)"
    words = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    said = [process.communicate(timeout=180)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    kernel = jit.build("softmax", dims={"rows": 8, "cols": 40}, store_dir=tmp_path)
    assert kernel.built.origin == "cached"
    assert kernel.built.artifact.library_sha256 in {line.strip() for line in said}
    check(kernel)


def test_an_illegal_candidate_is_rejected_before_a_child_is_started(tmp_path: Path, no_compiler: None) -> None:
    with pytest.raises(jit.NotBuilt) as caught:
        jit.build(
            "rms_norm",
            dims={"rows": 4, "cols": 8},
            candidate={"width": 8, "nontemporal": True},
            store_dir=tmp_path,
        )
    assert caught.value.rejection.stage == "constraints"


def test_an_explicit_request_names_the_wrong_knob(tmp_path: Path, no_compiler: None) -> None:
    with pytest.raises(InvalidInput) as caught:
        jit.build("rms_norm", dims={"rows": 4, "cols": 8}, candidate={"width": 3, "warps": 2}, store_dir=tmp_path)
    assert {problem.field for problem in caught.value.problems} == {"/candidate/width", "/candidate/warps"}


def test_an_output_written_over_its_input(cache: Path) -> None:
    program = {
        "name": "in_place",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input"},
            "y": {"axes": ["row", "col"], "role": "output", "aliases": "x"},
            "s": {"axes": ["row"], "role": "output"},
        },
        "body": [
            {"store": {"tensor": "y", "over": ["col"], "value": "x * 2.0"}},
            {"reduce": {"into": "total", "op": "sum", "over": ["col"], "value": "x"}},
            {"store": {"tensor": "s", "over": [], "value": "total"}},
        ],
    }
    kernel = jit.build(program, dims={"rows": ROWS, "cols": COLS}, store_dir=cache)
    assert kernel.built.candidate.input == "cache"  # x is read on after it was overwritten
    given = np.random.default_rng(0).normal(size=(ROWS, COLS)).astype(np.float32)
    x = given.copy()
    y, s = kernel(x)
    assert y is x
    np.testing.assert_array_equal(x, given * 2)
    np.testing.assert_allclose(s, given.sum(1), atol=1e-4)
    with pytest.raises(InvalidInput, match="written over 'x'"):
        kernel(x, given, s)

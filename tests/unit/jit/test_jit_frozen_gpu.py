"""A GPU's winner from the catalog to a launch on torch's stream. Stand-ins for cuda.core and torch's CUDA part.

What a launch computes is the program's own evaluation, on tensors of the CPU.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import catalogs
from catalogs import ANY_TOOLCHAIN, Catalog, DeviceIdentity, Entry, Hit, LookupKey, Manifest, ManifestEntry, Store
from search import jit
from search.device.gpu import absent_gpu, gpu_device
from search.errors import DeviceUnavailable, InvalidInput
from search.events import FreshBuilt, event_document
from search.jit import cuda_arrays, gpu
from search.lowering.contract import Argument, Artifact, BuildRequest, BuildResult, Launch, symbol_of
from search.lowering.cuda.emit import emit
from search.planning.default import default_candidate
from search.planning.plan import plan_candidate
from search.program.case import Case
from search.program.digest import program_digest
from search.program.reference import evaluate
from search.program.resolve import resolve_case
from search.selection.freeze import entry_of, kernel_row
from search.space.candidate import Candidate

torch = pytest.importorskip("torch")
UUID = "GPU-5f3c1a2b-0000-0000-0000-000000000001"
FACTS: dict[str, Any] = {
    "name": "NVIDIA H200",
    "uuid": UUID,
    "compute_capability": [9, 0],
    "multiprocessors": 132,
    "memory_bytes": 150_000_000_000,
    "driver_version": "580.1",
}
CASE = resolve_case({"kernel": "softmax", "dims": {"rows": 5, "cols": 64}})
CUBIN, SOURCE, CODE = b"cubin", "a" * 64, "b" * 64
SHA256 = hashlib.sha256(CUBIN).hexdigest()


class CUresult(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


class Driver:
    """What cuda.core and its bindings are told. A launch evaluates the case on the addresses that it is given."""

    def __init__(self, case: Case) -> None:
        self.case, self.launches, self.loaded = case, [], []
        self.status, self.refusal, self.stream = CUresult.CUDA_SUCCESS, None, 11
        core = types.ModuleType("cuda.core")
        core.__dict__.update(
            Device=lambda index: types.SimpleNamespace(set_current=lambda: None),
            ObjectCode=types.SimpleNamespace(from_cubin=self._module),
            Stream=types.SimpleNamespace(from_handle=lambda handle: ("stream", handle)),
            LaunchConfig=lambda **words: words,
            launch=self._launch,
        )
        driver = types.ModuleType("cuda.bindings.driver")
        driver.__dict__.update(CUresult=CUresult, CUkernel=lambda handle: handle, cuKernelGetFunction=self._function)
        bindings, package = types.ModuleType("cuda.bindings"), types.ModuleType("cuda")
        package.core, package.bindings, bindings.driver = core, bindings, driver  # type: ignore[attr-defined]
        self.modules = {"cuda": package, "cuda.core": core, "cuda.bindings": bindings, "cuda.bindings.driver": driver}

    status: CUresult
    refusal: Exception | None

    def _module(self, cubin: bytes) -> Any:
        self.loaded.append(cubin)
        return types.SimpleNamespace(get_kernel=lambda symbol: types.SimpleNamespace(handle=9, symbol=symbol))

    def _function(self, kernel: int) -> tuple[CUresult, int]:
        return self.status, 1

    def _launch(self, stream: Any, config: Mapping[str, int], kernel: Any, x: int, y: int, rows: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.launches.append((stream, dict(config), kernel.symbol, rows.value))
        shape = (rows.value, self.case.dims["cols"])
        size = shape[0] * shape[1]
        given = np.ctypeslib.as_array((ctypes.c_float * size).from_address(x)).reshape(shape).copy()
        out = np.ctypeslib.as_array((ctypes.c_float * size).from_address(y)).reshape(shape)
        out[...] = evaluate(self.case, {"x": given})["y"]


class Near(cuda_arrays.CudaAccess):
    """Tensors of the CPU pass for the GPU's."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.place = "cpu"

    def here(self, tensor: Any) -> bool:
        return bool(tensor.device.type == "cpu")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    one = Driver(CASE)
    for name, module in one.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 0,
        "get_device_capability": lambda index: (9, 0),
        "get_device_properties": lambda index: types.SimpleNamespace(uuid=UUID[4:-1] + str(index + 1)),
        "current_stream": lambda index=None: types.SimpleNamespace(cuda_stream=one.stream, synchronize=lambda: None),
        "device": lambda index: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(cuda_arrays, "CudaAccess", Near)
    monkeypatch.setattr(gpu, "_identities", {})
    attached(monkeypatch, FACTS)
    return one


def attached(monkeypatch: pytest.MonkeyPatch, *cards: Mapping[str, Any]) -> None:
    """These cards are what the driver lists."""
    found = tuple(
        gpu_device(card, architecture="sm_90", toolchain={}, unavailable=None, measure_cpus=[0], compile_cpus=[0])
        for card in cards
    )
    monkeypatch.setattr(gpu, "attached_gpus", lambda: found or (absent_gpu("the driver is broken"),))


def identity(**other: Any) -> DeviceIdentity:
    device = gpu_device(
        {**FACTS, **other}, architecture="sm_90", toolchain={}, unavailable=None, measure_cpus=[0], compile_cpus=[0]
    )
    return DeviceIdentity(kind=device.kind, identity=device.identity)


def artifact(**other: Any) -> Artifact:
    fields: dict[str, Any] = {
        "source_sha256": SOURCE,
        "artifact_sha256": CODE,
        "library_path": "",
        "library_sha256": SHA256,
        "symbol": symbol_of(SOURCE),
        "arguments": tuple(Argument(name=n, kind="dim" if n == "rows" else "tensor") for n in ("x", "y", "rows")),
        "launch": Launch(threads_per_block=256, rows_per_block=2, dynamic_shared_bytes=0),
        "architecture": "sm_90",
    }
    return Artifact(**{**fields, **other})


def entry(*, device: DeviceIdentity | None = None, **changes: Any) -> Entry:
    """The entry that freezing the case's untuned default on this GPU would give."""
    candidate: Candidate = default_candidate(CASE, "cuda")
    planned = plan_candidate(CASE, candidate, budget_scalars=None)
    assert planned.plan is not None
    assert planned.schedule is not None
    document = artifact().document()
    text = emit(planned.schedule).tilelang_text
    fields: dict[str, Any] = {
        "key": LookupKey(
            program_digest=program_digest(CASE.program, CASE.params),
            dims=dict(CASE.dims),
            dtypes=dict(CASE.dtypes),
            device=(device or identity()).digest,
            toolchain="c" * 64,
        ),
        "kernel": CASE.kernel,
        "params": dict(CASE.params),
        "candidate": candidate.document(),
        "plan": planned.plan.document(),
        "code": {
            "source_sha256": SOURCE,
            "artifact_sha256": CODE,
            "tilelang_sha256": hashlib.sha256(text.encode()).hexdigest(),
        },
        "protocol": {"name": "finals"},
        "numerics": {},
        "median_seconds": 1e-5,
        "samples_sha256": "0" * 64,
        "tie_set": ("trl_1",),
        "job_id": "job_1",
        "trial_id": "trl_1",
        "artifact": {
            name: document[name] for name in ("library_sha256", "symbol", "arguments", "launch", "architecture")
        },
    }
    return Entry(**{**fields, **changes})


def catalog_of(one: Entry, device: DeviceIdentity) -> Catalog:
    return catalogs.freeze([one], role="candidate", kernels=[kernel_row(CASE)], device=device, toolchain="c" * 64)


def store_of(folder: Path, catalog: Catalog, cubin: bytes = CUBIN) -> Store:
    """As ``pull(artifacts=True, device=this_gpu())`` leaves it."""
    store = Store(folder)
    target = ManifestEntry(device=catalog.device, toolchain=catalog.toolchain, digest=store.put(catalog))
    store.set_alias(Manifest(alias="prod", entries=(target,)))
    store.put_artifact(cubin, sha256=hashlib.sha256(cubin).hexdigest(), device=catalog.device)
    return store


def hit(store: Store, device: DeviceIdentity) -> Hit:
    opened = catalogs.open(store.folder, device=device)
    found = opened.lookup(kernel="softmax", dims=dict(CASE.dims), device=device, toolchain=ANY_TOOLCHAIN)
    assert isinstance(found, Hit), found
    return found


def served(folder: Path, **words: Any) -> jit.Kernel:
    device = jit.this_gpu()
    store = store_of(folder / "store", catalog_of(entry(), device))
    return jit.build(hit(store, device), artifacts=store, store_dir=folder / "jit", may_compile=False, **words)


def test_a_winner_is_looked_up_verified_and_launched_on_the_current_stream(driver: Driver, tmp_path: Path) -> None:
    kernel = served(tmp_path)
    assert (kernel.built.origin, kernel.built.gpu) == ("pulled", 0)
    assert driver.loaded == [CUBIN]
    x = torch.randn(5, 64)
    torch.testing.assert_close(kernel(x), torch.softmax(x, dim=-1))
    driver.stream = 12  # a graph is being captured, say
    out = torch.empty(5, 64)
    assert kernel(x, out=out) is out
    torch.testing.assert_close(out, torch.softmax(x, dim=-1))
    geometry = {"grid": 3, "block": 256, "shmem_size": 0}
    assert driver.launches == [(("stream", stream), geometry, symbol_of(SOURCE), 5) for stream in (11, 12)]
    with pytest.raises(InvalidInput, match="shape"):
        kernel(x[:4])
    assert len(driver.launches) == 2


def test_a_lookup_is_of_the_card_alone(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = jit.this_gpu()
    assert device == identity()
    opened = catalogs.open(catalog_of(entry(), device))
    words: dict[str, Any] = {"kernel": "softmax", "dims": dict(CASE.dims), "toolchain": ANY_TOOLCHAIN}
    assert isinstance(opened.lookup(**words, device=device), Hit)
    for other in (identity(power_limit_watts=350.0), catalogs.this_device()):
        missed = opened.lookup(**words, device=other)
        assert isinstance(missed, catalogs.Miss)
        assert "device" in missed.reason
    second = {**FACTS, "uuid": UUID[:-1] + "2", "multiprocessors": 114}
    attached(monkeypatch, second, FACTS)  # in another order than torch's
    assert jit.this_gpu("cuda:1") == identity(multiprocessors=114)
    with pytest.raises(jit.OtherDevice, match=r"search\.jit\.this_gpu"):
        jit.build(entry(), device="cuda:1")


def test_a_cubin_that_is_not_the_recorded_one_is_refused(driver: Driver, tmp_path: Path) -> None:
    device = jit.this_gpu()
    store = store_of(tmp_path / "store", catalog_of(entry(), device))
    found = hit(store, device)
    words: dict[str, Any] = {"store_dir": tmp_path / "jit", "may_compile": False}
    path = store.artifact(SHA256, device=device.digest)
    path.chmod(0o644)
    path.write_bytes(b"cubim")
    with pytest.raises(catalogs.FormatError, match="damaged or edited"):
        jit.build(found, artifacts=store, **words)
    path.write_bytes(CUBIN)
    kept = dict(entry().artifact or {})
    without = {name: value for name, value in kept.items() if name not in ("launch", "architecture")}
    for record, error, message in (
        ({**kept, "architecture": "sm_100"}, jit.LoadFailed, "built for sm_100, and this GPU is sm_90"),
        ({**kept, "symbol": "k_other"}, jit.LoadFailed, "names the symbol 'k_other'"),
        ({**kept, "arguments": kept["arguments"][:2] + kept["arguments"][:1]}, jit.LoadFailed, "has the arguments"),
        ({**kept, "launch": {"threads": 3}}, InvalidInput, "launch"),
        (without, jit.LoadFailed, "no launch"),
    ):
        with pytest.raises(error, match=message):
            jit.build(entry(artifact=record), artifacts=store, **words)
    text = entry(code={**entry().code, "tilelang_sha256": "d" * 64})
    with pytest.raises(jit.TextChanged):
        jit.build(text, artifacts=store, **words)
    with pytest.raises(jit.NotCompiled):
        jit.build(entry(), **words)
    assert driver.loaded == []


@pytest.mark.parametrize(
    ("device", "message"), [("cpu", "this one is for a GPU"), ("rocm", "not a device of torch"), (None, None)]
)
def test_a_winner_has_its_own_device(driver: Driver, tmp_path: Path, device: str | None, message: str | None) -> None:
    if message is None:
        assert served(tmp_path, device=device).built.gpu == 0
        return
    with pytest.raises(InvalidInput, match=message):
        jit.build(entry(), device=device)


def test_where_no_gpu_is_that_is_said(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    attached(monkeypatch)
    with pytest.raises(DeviceUnavailable, match="the driver is broken"):
        jit.build(entry())
    attached(monkeypatch, {**FACTS, "uuid": "GPU-other"})
    with pytest.raises(DeviceUnavailable, match=f"cuda:0 .{UUID}. is no GPU of the driver's"):
        jit.this_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="no GPU is present"):
        jit.build(entry())


def test_a_gpu_that_vanishes_or_a_context_that_breaks(driver: Driver, tmp_path: Path) -> None:
    """Between probe and load, and between load and launch."""
    driver.status = CUresult.CUDA_ERROR_NO_DEVICE
    with pytest.raises(DeviceUnavailable, match="NO_DEVICE"):
        served(tmp_path / "1")
    driver.status = CUresult.CUDA_SUCCESS
    kernel, x = served(tmp_path / "2"), torch.zeros(5, 64)
    driver.refusal = RuntimeError("CUDA_ERROR_DEVICE_UNAVAILABLE: gone")
    with pytest.raises(DeviceUnavailable, match="DEVICE_UNAVAILABLE"):
        kernel(x)
    driver.refusal = RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: of another kernel")
    with pytest.raises(jit.LaunchFailed, match="broke the CUDA context of this process"):
        kernel(x)
    mistake = TypeError("of ours")
    driver.refusal = mistake
    with pytest.raises(TypeError, match="of ours"):
        kernel(x)


def test_what_was_not_pulled_is_built_for_the_card_and_compared(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Artifact] = []

    class Builder:
        def __init__(self, folder: Path, *, target: str, architecture: str) -> None:
            assert (target, architecture) == ("cuda", "sm_90")
            self.folder = folder

        def build(self, requests: Sequence[BuildRequest], **_: Any) -> Iterator[BuildResult]:
            path = self.folder / "libraries" / f"{SHA256}.cubin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(CUBIN)
            built.append(replace(made(), library_path=str(path)))
            for request in requests:
                yield BuildResult(id=request.id, artifact=built[-1])

        def close(self) -> None:
            pass

        def release(self) -> None:
            pass

    made: Callable[[], Artifact] = artifact
    monkeypatch.setattr(gpu, "Builder", Builder)
    monkeypatch.setattr("search.lowering.cuda.toolchain.fingerprint", lambda architecture, cache_dir: {"made": "up"})
    kernel = jit.build(entry(), store_dir=tmp_path)
    assert (kernel.built.origin, len(built)) == ("compiled", 1)
    x = torch.randn(5, 64)
    torch.testing.assert_close(kernel(x), torch.softmax(x, dim=-1))
    (again,) = jit.build_all([entry()], store_dir=tmp_path, may_compile=False, device="cuda:0")
    assert again.built.origin == "cached"
    made = lambda: artifact(source_sha256="e" * 64)  # noqa: E731
    with pytest.raises(jit.SourceChanged):
        jit.build(entry(), store_dir=tmp_path / "other")
    made = lambda: artifact(artifact_sha256="e" * 64)  # noqa: E731
    with pytest.raises(jit.MachineCodeChanged):
        jit.build(entry(), store_dir=tmp_path / "another")


def test_freezing_keeps_what_a_launch_needs() -> None:
    made = entry()
    trial = {
        "id": "trl_1",
        "candidate": dict(made.candidate),
        "plan": dict(made.plan),
        "code": dict(made.code),
        "same_code_as": None,
        "timing": {"device_batch": {"samples_seconds": [1e-5]}},
    }
    built = FreshBuilt(trial="trl_1", artifact=artifact(), plan=None, rejection=None)
    settled = {
        "job_id": "job_1",
        "case": CASE.document(),
        "program_digest": made.key.program_digest,
        "device": {"identity_digest": made.key.device, "toolchain_fingerprint": made.key.toolchain},
        "protocol": "search",
        "winner": trial,
        "reference": trial,
        "tie_set": ["trl_1"],
        "reference_tie_set": ["trl_1"],
        "events": [event_document(built)],
    }
    frozen = entry_of(settled)
    assert frozen.artifact == made.artifact
    assert Entry.from_document(frozen.document()) == frozen
    for wrong in ({"launch": {"threads_per_block": "many"}}, {"architecture": 90}):
        with pytest.raises(catalogs.FormatError, match=next(iter(wrong))):
            Entry.from_document({**frozen.document(), "artifact": {**dict(made.artifact or {}), **wrong}})


def test_libraries_of_a_gpu_may_be_pulled_for_it(tmp_path: Path) -> None:
    with pytest.raises(catalogs.QueryError, match="do not run here"):
        catalogs.pull("http://127.0.0.1:9/v1/aliases/prod", str(tmp_path), artifacts=True, device="a" * 64)
    with pytest.raises(catalogs.SourceError):  # nobody answers there; the device is none of the reasons
        catalogs.pull("http://127.0.0.1:9/v1/aliases/prod", str(tmp_path), artifacts=True, device=identity())

"""``search.jit.build``: from a catalog hit, or explicit parameters, to a Kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from catalogs import Catalog, Entry, Hit, Miss, NotStored, OpenCatalog, Store
from search.errors import InvalidInput, Problem
from search.jit.cache import Cache, frozen_key
from search.jit.cuda_library import load_cuda
from search.jit.errors import NotBuilt, NotCompiled
from search.jit.explicit import Named, explicit_candidate, explicit_case
from search.jit.frozen import Frozen, KernelTable, target_of, thaw
from search.jit.gpu import Gpu, identity_of, named_gpu
from search.jit.kernel import Built, Kernel, Origin
from search.jit.library import check_arguments, load
from search.jit.signature import row_bound
from search.jit.unbuilt import compare_unbuilt
from search.lowering.builder import Builder
from search.lowering.contract import Artifact, BuildRequest
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.program.case import Case
from search.program.digest import program_digest
from search.space.candidate import Candidate, TargetKind

BUILD_TIMEOUT_SECONDS = 120.0
"""The longest silence of the compiling child."""


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """One kernel to come: what it is, and, where it was frozen, what it must be equal to."""

    case: Case
    candidate: Candidate
    frozen: Frozen | None = None
    catalog: OpenCatalog | Catalog | None = None
    """Where the entry is said to come from."""
    gpu: Gpu | None = None
    """Where it is to run, for a candidate of a GPU."""

    @property
    def subject(self) -> str:
        return self.frozen.subject if self.frozen is not None else f"{self.case.kernel} {dict(self.case.dims)}"

    @property
    def architecture(self) -> str | None:
        """What code is generated for; None for this machine's CPU."""
        return None if self.gpu is None else self.gpu.code

    def request(self, name: str) -> BuildRequest:
        return BuildRequest(id=name, case=self.case.document(), candidate=self.candidate.document())

    def frozen_key(self, *, source_sha256: str, artifact_sha256: str) -> str:
        """Where the cache has what this became, by way of that source, as that machine code."""
        return frozen_key(
            self.request(""),
            program_digest=program_digest(self.case.program, self.case.params),
            source_sha256=source_sha256,
            artifact_sha256=artifact_sha256,
        )

    def kernel(self, artifact: Artifact, origin: Origin, *, any_rows: bool) -> Kernel:
        program, gpu = self.case.program, self.gpu
        tensors = [tensor.name for tensor in program.tensors]
        if gpu is None:
            function = load(artifact, tensors=tensors, dims=program.dims)
        else:
            check_arguments(artifact, tensors=tensors, dims=program.dims)
            function = load_cuda(artifact, gpu=gpu, row_dim=program.row_axis.dim, rows=self.case.rows)
        built = Built(
            case=self.case,
            candidate=self.candidate,
            artifact=artifact,
            origin=origin,
            entry=self.frozen.entry if self.frozen is not None else None,
            gpu=None if gpu is None else gpu.index,
        )
        return Kernel(built, function, any_rows=any_rows)


def build(
    what: Hit | Entry | Named,
    *,
    candidate: Candidate | Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    params: Mapping[str, float | int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    program: Mapping[str, Any] | None = None,
    device: str | None = None,
    catalog: OpenCatalog | Catalog | None = None,
    artifacts: Store | str | os.PathLike[str] | None = None,
    store_dir: str | os.PathLike[str] | None = None,
    any_rows: bool = False,
    may_compile: bool = True,
    allow_other_machine_code: bool = False,
    timeout_seconds: float = BUILD_TIMEOUT_SECONDS,
) -> Kernel:
    """A callable of a catalog hit, or of a kernel with explicit parameters.

    A hit (or its entry) is taken from ``artifacts`` (a catalog store that ``pull(artifacts=True)`` filled), else from
    ``store_dir`` (what was built here before; default: the user's cache), else compiled in a child process, once. Only
    a program that is not built in needs ``catalog`` (its kernels table has it) or ``program``.

    A kernel's name or a program takes ``dims``, ``params``, ``dtypes`` and a ``candidate``: complete, or the knobs that
    differ from the untuned default. ``device``: ``cpu`` (the default then), ``cuda`` (torch's current GPU) or
    ``cuda:1``. A frozen winner has its own device: for a GPU's, torch's current GPU, or the named one, must be it.

    ``any_rows``: take every number of rows, not the frozen one alone; right, but neither tuned nor accepted for them.
    ``may_compile=False``: never start a compiler. ``timeout_seconds``: the longest silence of the compiling child.

    Raises OtherDevice, ProgramChanged, PlanChanged, SourceChanged (TextChanged), MachineCodeChanged (unless allowed)
    when anything differs from what was frozen; NotBuilt, NotCompiled, LoadFailed; InvalidInput; ToolchainUnavailable;
    DeviceUnavailable for a GPU that is not there.
    """
    options = {"any_rows": any_rows, "may_compile": may_compile, "allow_other_machine_code": allow_other_machine_code}
    if isinstance(what, Hit | Entry):
        given = {"candidate": candidate, "dims": dims, "params": params, "dtypes": dtypes}
        for name, value in given.items():
            if value is not None:
                message = f"a frozen winner has its own {name}"
                raise InvalidInput([Problem(field=f"/{name}", value=str(value)[:200], message=message, allowed=None)])
        wanted = _frozen(what, program=program, catalog=catalog, device=device)
    else:
        if isinstance(what, Miss):
            _entry(what)  # says why it is one
        case, gpu = explicit_case(what, dims=dims, params=params, dtypes=dtypes), named_gpu(device or "cpu")
        target: TargetKind = "cpu" if gpu is None else "cuda"
        wanted = _Wanted(case=case, candidate=explicit_candidate(case, candidate, target), gpu=gpu)
    return _kernels([wanted], artifacts=artifacts, store_dir=store_dir, timeout_seconds=timeout_seconds, **options)[0]


def build_all(
    hits: Iterable[Hit | Entry],
    *,
    device: str | None = None,
    catalog: OpenCatalog | Catalog | None = None,
    artifacts: Store | str | os.PathLike[str] | None = None,
    store_dir: str | os.PathLike[str] | None = None,
    any_rows: bool = False,
    may_compile: bool = True,
    allow_other_machine_code: bool = False,
    timeout_seconds: float = BUILD_TIMEOUT_SECONDS,
) -> list[Kernel]:
    """A callable of each hit, as :func:`build` makes it; what must be compiled for a device is compiled together, in
    one child."""
    return _kernels(
        [_frozen(hit, program=None, catalog=catalog, device=device) for hit in hits],
        artifacts=artifacts,
        store_dir=store_dir,
        any_rows=any_rows,
        may_compile=may_compile,
        allow_other_machine_code=allow_other_machine_code,
        timeout_seconds=timeout_seconds,
    )


def _frozen(
    hit: Any, *, program: Mapping[str, Any] | None, catalog: OpenCatalog | Catalog | None, device: str | None
) -> _Wanted:
    table: KernelTable | None = catalog.snapshot if isinstance(catalog, OpenCatalog) else catalog
    entry = _entry(hit)
    target = target_of(entry)
    gpu = named_gpu(device or ("cpu" if target == "cpu" else "cuda"))
    if (gpu is None) != (target == "cpu"):
        message = f"a frozen winner has its own device: this one is for a {'CPU' if target == 'cpu' else 'GPU'}"
        allowed = ["cpu"] if target == "cpu" else ["cuda", "cuda:0"]
        raise InvalidInput([Problem(field="/device", value=device, message=message, allowed=allowed)])
    frozen = thaw(entry, program=program, table=table, device=None if gpu is None else identity_of(gpu))
    return _Wanted(case=frozen.case, candidate=frozen.candidate, frozen=frozen, catalog=catalog, gpu=gpu)


def _entry(hit: Any) -> Entry:
    """The entry of a hit. InvalidInput for a Miss, with its reason, and for what is neither."""
    if isinstance(hit, Entry):
        return hit
    if isinstance(hit, Hit):
        return hit.entry
    message = f"a miss cannot be built: {hit.reason}" if isinstance(hit, Miss) else "not a catalog's hit or entry"
    raise InvalidInput([Problem(field="", value=repr(hit)[:200], message=message, allowed="a Hit or an Entry")])


def _kernels(
    wanted: Sequence[_Wanted],
    *,
    artifacts: Store | str | os.PathLike[str] | None,
    store_dir: str | os.PathLike[str] | None,
    any_rows: bool,
    may_compile: bool,
    allow_other_machine_code: bool,
    timeout_seconds: float,
) -> list[Kernel]:
    for one in wanted:
        if any_rows and (bound := row_bound(one.case)) is not None:
            message = f"this kernel is right for its own number of rows only: {bound}"
            raise InvalidInput([Problem(field="/any_rows", value=True, message=message, allowed=False)])
    cache = Cache(store_dir)
    store = artifacts if isinstance(artifacts, Store) or artifacts is None else Store(artifacts)
    found: list[tuple[Artifact, Origin] | None] = [
        _at_hand(one, cache, store, allow_other_machine_code=allow_other_machine_code) for one in wanted
    ]
    missing = [place for place, artifact in enumerate(found) if artifact is None]
    if missing and not may_compile:
        names = "; ".join(wanted[place].subject for place in missing)
        raise NotCompiled(
            f"no compiled library is in {cache.folder} or the catalog store, and may_compile is off: {names}"
        )
    if missing:
        built = _compiled([wanted[place] for place in missing], cache, timeout_seconds)
        for place, artifact in zip(missing, built, strict=True):
            frozen = wanted[place].frozen
            if frozen is not None:
                frozen.compare(artifact, allow_other_machine_code=allow_other_machine_code)
            found[place] = (artifact, "compiled")
    made = zip(wanted, found, strict=True)
    return [one.kernel(*at_hand, any_rows=any_rows) for one, at_hand in made if at_hand is not None]


def _at_hand(
    one: _Wanted, cache: Cache, store: Store | None, *, allow_other_machine_code: bool
) -> tuple[Artifact, Origin] | None:
    """The compiled library that is here already."""
    frozen = one.frozen
    if frozen is None:
        artifact = cache.find(cache.request_key(one.request(""), architecture=one.architecture))
        return None if artifact is None else (artifact, "cached")
    library = frozen.library()
    if library is not None and store is not None:
        try:
            path = store.artifact(library.library_sha256, device=frozen.entry.key.device)
        except NotStored:
            pass  # not pulled: build it, or find what was built here
        else:
            compare_unbuilt(frozen, one.catalog)
            return replace(library, library_path=str(path)), "pulled"
    key = one.frozen_key(source_sha256=frozen.source_sha256, artifact_sha256=frozen.artifact_sha256)
    artifact = cache.find(key)
    if artifact is None and allow_other_machine_code:
        artifact = cache.find(cache.request_key(one.request(""), architecture=one.architecture))
    if artifact is None:
        return None
    frozen.compare(artifact, allow_other_machine_code=allow_other_machine_code)
    return artifact, "cached"


def _compiled(wanted: Sequence[_Wanted], cache: Cache, timeout_seconds: float) -> list[Artifact]:
    """The artifacts of what has to be compiled, in order; all are kept, whatever is then said about them."""
    for one in wanted:
        schedule = build_schedule(one.case, one.candidate)
        if isinstance(schedule, Rejected):
            raise NotBuilt(subject=one.subject, rejection=schedule)
    requests = [one.request(str(place)) for place, one in enumerate(wanted)]
    artifacts: dict[str, Artifact] = {}
    for architecture in dict.fromkeys(one.architecture for one in wanted):
        places = [place for place, one in enumerate(wanted) if one.architecture == architecture]
        gpu = wanted[places[0]].gpu
        builder = Builder(cache.folder) if gpu is None else gpu.builder(cache.folder)
        batch = [requests[place] for place in places]
        try:
            for result in builder.build(batch, timeout_seconds=timeout_seconds, cancelled=lambda: False):
                if result.rejection is not None:
                    raise NotBuilt(subject=wanted[int(result.id)].subject, rejection=result.rejection)
                assert result.artifact is not None
                artifacts[result.id] = result.artifact
        finally:
            builder.release()
    for one, request in zip(wanted, requests, strict=True):
        artifact = artifacts[request.id]
        cache.keep(cache.request_key(request, architecture=one.architecture), artifact)
        key = one.frozen_key(source_sha256=artifact.source_sha256, artifact_sha256=artifact.artifact_sha256)
        cache.keep(key, artifact)
    return [artifacts[request.id] for request in requests]

"""What can be compared where nothing is rebuilt: a pulled library has no source, and there may be no compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from catalogs import Catalog, OpenCatalog, sha256_hex
from search.errors import InvalidInput, Problem
from search.jit.errors import LoadFailed, NotBuilt, PlanChanged, TextChanged
from search.jit.frozen import Frozen
from search.lowering.contract import Emitted, symbol_of
from search.lowering.cpu.emit import emit as emit_cpu
from search.lowering.cuda.emit import emit as emit_cuda
from search.lowering.expressions import UnsupportedError
from search.outcome import Rejected
from search.planning.build import build_schedule
from search.planning.plan import plan_of
from search.planning.schedule import Schedule
from search.space.candidate import TargetKind

_EMITTERS: Mapping[TargetKind, Callable[[Schedule], Emitted]] = {"cpu": emit_cpu, "cuda": emit_cuda}
_PLAN_FACTS = ("private_scalars", "allocated_scalars", "partial_scalars", "demand")
"""Those that case and candidate decide alone; a score is the policy's too."""


def compare_unbuilt(frozen: Frozen, catalog: OpenCatalog | Catalog | None) -> None:
    """Plan the entry's candidate and emit its text anew, and look the entry up in the catalog, where one is given.

    Raises PlanChanged, TextChanged (entries that have no ``code.tilelang_sha256`` are compared by plan alone), NotBuilt
    for a candidate that is not legal, LoadFailed for a symbol that is another source's, InvalidInput for an entry that
    is not the catalog's.
    """
    _compare_entry(frozen, catalog)
    _compare_symbol(frozen)
    schedule = build_schedule(frozen.case, frozen.candidate)
    if isinstance(schedule, Rejected):
        raise NotBuilt(subject=frozen.subject, rejection=schedule)
    plan = plan_of(schedule).document()
    wanted = {name: frozen.entry.plan.get(name) for name in _PLAN_FACTS}
    found = {name: plan[name] for name in _PLAN_FACTS}
    if wanted != found:
        raise PlanChanged(subject=frozen.subject, frozen=sha256_hex(wanted), found=sha256_hex(found))
    text_sha256 = frozen.entry.code.get("tilelang_sha256")
    if text_sha256 is None:
        return
    try:
        text = _EMITTERS[frozen.candidate.target](schedule).tilelang_text
    except UnsupportedError as error:
        rejection = Rejected(stage="compile", reason="unsupported", detail={"message": str(error)})
        raise NotBuilt(subject=frozen.subject, rejection=rejection) from None
    emitted = hashlib.sha256(text.encode()).hexdigest()
    if emitted != text_sha256:
        raise TextChanged(subject=frozen.subject, frozen=str(text_sha256), found=emitted)


def _compare_entry(frozen: Frozen, catalog: OpenCatalog | Catalog | None) -> None:
    """The catalog's digest vouches for its entries; this is one of them, if the catalog is at hand."""
    entry = frozen.entry
    if isinstance(catalog, OpenCatalog):
        snapshot = catalog.snapshot
        if snapshot is None:
            return
        group = snapshot.group(entry.key)
        hit = None
        if group is not None and set(entry.key.dims) == set(group.kernel.dims):
            hit = snapshot.hit(group, tuple(entry.key.dims[name] for name in group.kernel.dims))
        known, digest = (hit.entry if hit is not None else None), snapshot.digest
    elif catalog is not None:
        known, digest = next((one for one in catalog.entries if one.key == entry.key), None), catalog.digest
    else:
        return
    if known is not entry and (known is None or known.digest != entry.digest):
        message = f"not an entry of the catalog that was given, {digest}: look it up there"
        raise InvalidInput(
            [Problem(field="", value=frozen.subject, message=message, allowed="an entry of the catalog")]
        )


def _compare_symbol(frozen: Frozen) -> None:
    """A library has the kernels of a whole batch: the symbol must be that of the entry's source."""
    library = frozen.library()
    if library is not None and library.symbol != symbol_of(frozen.source_sha256):
        raise LoadFailed(
            f"{frozen.subject}: its record names the symbol {library.symbol!r}, and that of its source is "
            f"{symbol_of(frozen.source_sha256)!r}"
        )

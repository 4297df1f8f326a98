"""An open catalog: pinned by its digest, for lookups from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from catalogs import fields as check
from catalogs.bound import Binding, BoundLookup, extent
from catalogs.device import DeviceIdentity
from catalogs.errors import FormatError, MissError, QueryError
from catalogs.key import ANY_TOOLCHAIN, AnyToolchain, LookupKey
from catalogs.lookup import Hit, Miss, Query
from catalogs.snapshot import Snapshot

if TYPE_CHECKING:
    from catalogs.misses import MissQueue

OnMiss = str | Callable[[Miss], Any]
OFF_REASON = "lookups are switched off by TUNER_CATALOG=off"
_BINDINGS_KEPT = 1024
_NONE: Mapping[str, Any] = {}
_Bindings = dict[Any, tuple[BoundLookup, tuple[str, ...] | None]]


class OpenCatalog:
    """A catalog that answers lookups. Pins its digest; only :meth:`refresh` changes it. Made by ``catalogs.open``."""

    def __init__(self, load: Callable[[bool], Snapshot | None], *, on_miss: OnMiss, queue: MissQueue | None) -> None:
        self._load = load
        self._queue = queue
        self._on_miss = self._action(on_miss)
        # one attribute, so that a lookup during a refresh takes its bindings from one catalog or the other, never both
        self._pinned: tuple[Snapshot | None, _Bindings] = (load(False), {})

    @property
    def digest(self) -> str:
        """The pinned catalog's digest, to be compared across ranks; ``off`` when lookups are switched off."""
        snapshot = self.snapshot
        return snapshot.digest if snapshot is not None else "off"

    @property
    def snapshot(self) -> Snapshot | None:
        """The pinned catalog; None when lookups are switched off."""
        return self._pinned[0]

    def __len__(self) -> int:
        snapshot = self.snapshot
        return len(snapshot) if snapshot is not None else 0

    def __repr__(self) -> str:
        return f"OpenCatalog(digest={self.digest!r}, entries={len(self)})"

    def lookup(
        self,
        *,
        kernel: str,
        dims: Mapping[str, int],
        device: DeviceIdentity | str,
        toolchain: str | AnyToolchain,
        params: Mapping[str, float | int] = _NONE,
        dtypes: Mapping[str, str] = _NONE,
        threads: int = 1,
        metric: str = "device_batch",
        cache_context: str = "warm",
        aliasing: str = "none",
    ) -> Hit | Miss:
        """The entry whose key is exactly this one, or a Miss that says what differs.

        Params and dtypes that are left out take the kernel's defaults. ``toolchain``: a fingerprint, or
        ``ANY_TOOLCHAIN`` said out loud. Raises QueryError for values that no key can have, and MissError after
        ``on_miss="raise"``.
        """
        try:
            bound, names = self._pinned[1][
                (
                    kernel,
                    tuple(params.items()),
                    (*map(type, params.values()),),  # True and 1.0 equal 1, and are not the same to be asked with
                    tuple(dtypes.items()),
                    # the property would cost as much as the rest of this key
                    device.__dict__["_digest"] if type(device) is DeviceIdentity else device,
                    toolchain,
                    threads,
                    type(threads),
                    metric,
                    cache_context,
                    aliasing,
                )
            ]
        except (KeyError, TypeError, AttributeError):
            bound = self._bind(kernel, params, dtypes, device, toolchain, threads, metric, cache_context, aliasing)
            names = bound.dims
        try:
            if names is None or len(dims) != len(names):
                return self._missed(bound, dims)
            extents = [dims[name] for name in names]
        except (KeyError, TypeError, IndexError):
            return self._missed(bound, dims)
        return bound(*extents)

    def bind(
        self,
        *,
        kernel: str,
        device: DeviceIdentity | str,
        toolchain: str | AnyToolchain,
        params: Mapping[str, float | int] = _NONE,
        dtypes: Mapping[str, str] = _NONE,
        threads: int = 1,
        metric: str = "device_batch",
        cache_context: str = "warm",
        aliasing: str = "none",
    ) -> BoundLookup:
        """A lookup with everything fixed but the dims; call it with them, positionally in declared order.

        It stays with this digest: bind again after a refresh. Raises QueryError for values that no key can have.
        """
        return self._bind(kernel, params, dtypes, device, toolchain, threads, metric, cache_context, aliasing)

    def refresh(self) -> bool:
        """Take the catalog that the alias points to now (asking the source, if there is one); whether it is another.

        Raises SourceError or another CatalogError when that fails: the pinned catalog goes on serving.
        """
        before = self.digest
        self._pinned = (self._load(True), {})
        return self.digest != before

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until queued misses were sent or given up (``on_miss="enqueue"``); whether that happened in time."""
        return self._queue.flush(timeout_seconds) if self._queue is not None else True

    def _bind(
        self,
        kernel: str,
        params: Mapping[str, float | int],
        dtypes: Mapping[str, str],
        device: DeviceIdentity | str,
        toolchain: str | AnyToolchain,
        threads: int,
        metric: str,
        cache_context: str,
        aliasing: str,
    ) -> BoundLookup:
        snapshot, bindings = self._pinned
        try:
            check.a_text(kernel, "kernel")
            check.numbers(params, "params")
            check.texts(dtypes, "dtypes")
            # a kind ("cpu") or a word ("any") is in no key: it would miss for ever, and nobody would know why
            asked_device = check.a_sha256(
                device.digest if isinstance(device, DeviceIdentity) else device,
                "device (this_device(), or an identity digest)",
            )
            if not isinstance(toolchain, AnyToolchain):
                check.a_sha256(toolchain, "toolchain (a fingerprint, or ANY_TOOLCHAIN)")
            check.an_integer(threads, "threads", least=1)
            for name, word in (("metric", metric), ("cache_context", cache_context), ("aliasing", aliasing)):
                check.a_text(word, name)
        except FormatError as error:
            raise QueryError(str(error)) from None
        model = snapshot.model(kernel) if snapshot is not None else None
        full_params = {**model.param_defaults, **params} if model is not None else dict(params)
        row = snapshot.row(kernel, full_params) if snapshot is not None else None
        key = LookupKey(
            program_digest=row.program_digest if row is not None else "",
            dims={},
            dtypes=model.full_dtypes(dtypes) if model is not None else dict(dtypes),
            device=asked_device,
            toolchain="" if isinstance(toolchain, AnyToolchain) else toolchain,
            threads=threads,
            metric=metric,
            cache_context=cache_context,
            aliasing=aliasing,
        )
        any_toolchain = isinstance(toolchain, AnyToolchain)
        served = (
            snapshot is not None
            and row is not None
            and asked_device == snapshot.device
            and (any_toolchain or toolchain == snapshot.toolchain)
        )
        bound = BoundLookup(
            Binding(
                snapshot=snapshot,
                query=Query(
                    kernel=kernel,
                    params=row.params if row is not None else full_params,
                    key=key,
                    toolchain=ANY_TOOLCHAIN if any_toolchain else toolchain,
                ),
                group=snapshot.group(key) if served and snapshot is not None else None,
                dims=model.dims if model is not None else None,
                on_miss=self._on_miss,
                switched_off=OFF_REASON if snapshot is None else None,
            )
        )
        if len(bindings) >= _BINDINGS_KEPT:
            bindings.clear()
        given = (tuple(params.items()), tuple(map(type, params.values())), tuple(dtypes.items()))
        asked = (kernel, *given, asked_device, toolchain, threads, type(threads), metric, cache_context, aliasing)
        bindings[asked] = (bound, bound.dims)
        return bound

    def _missed(self, bound: BoundLookup, dims: Mapping[str, int]) -> Miss:
        """The miss of dims whose names are not the kernel's (or of a kernel that the catalog does not have)."""
        if not isinstance(dims, Mapping) or not all(isinstance(name, str) for name in dims):
            raise QueryError(f"dims: expected an object of integers, got {check.shown(dims)}")
        miss = bound.miss({name: extent(value, name) for name, value in dims.items()})
        if self._on_miss is not None:
            self._on_miss(miss)
        return miss

    def _action(self, on_miss: OnMiss) -> Callable[[Miss], None] | None:
        if on_miss == "raise":
            return _raise
        if on_miss == "enqueue":
            return self._enqueue
        return None if isinstance(on_miss, str) else on_miss

    def _enqueue(self, miss: Miss) -> None:
        snapshot = self.snapshot
        if self._queue is None or snapshot is None:
            return
        row = snapshot.row(miss.query.kernel, miss.query.params)
        self._queue.offer(miss, row.program if row is not None else None)


def _raise(miss: Miss) -> None:
    raise MissError(miss)

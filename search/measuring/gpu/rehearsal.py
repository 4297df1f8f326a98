"""A driver and a card that run nothing on a GPU: for tests of what surrounds them, and for dry runs. Not a measurement.

Device memory is memory of this process. A launch is noted; what the kernel should have written is filled in by whoever
rehearses, when somebody waits for it. Time is a clock that each launch moves on. A script says what goes wrong.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.lowering.contract import Argument
from search.measuring.gpu.card import CardState, Process
from search.measuring.gpu.driver import Call, DriverFault, fault_kind

_ALIGNMENT_BYTES = 256
Play = Callable[[str, Mapping[str, int], Mapping[str, int]], None]
"""Does what a kernel should: its symbol, addresses of tensors (memory of this process), dims."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What goes how in a rehearsal. Symbols are those of kernels."""

    seconds_per_call: Mapping[str, float] = field(default_factory=dict)
    """Others take ``usual_seconds``."""
    usual_seconds: float = 1e-4
    last_level_cache_bytes: int = 1 << 16
    memory_bytes: int = 1 << 32
    absent: str | None = None
    """Code of the fault with which the device is not there when it is opened."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Symbol → code of the fault that comes out when somebody waits for it; then every call fails with it."""
    hangs: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    """Kernels that write nothing."""
    scribbles: tuple[str, ...] = ()
    """Kernels that write one element past their first output too."""
    clocks_hz: tuple[int, ...] = (1_980_000_000,)
    """SM clock at each look; the last one stays."""
    throttle_reasons: tuple[tuple[str, ...], ...] = ((),)
    strangers: tuple[tuple[int, ...], ...] = ((),)
    """Processes of others that compute, at each look; the last ones stay."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Script:
        """From JSON."""
        lists = {name: _tuples(value) for name, value in document.items() if isinstance(value, list)}
        return cls(**{**document, **lists})


class RehearsalDriver:
    """See ``driver.Driver``. ``log`` has the name of each call."""

    name = "rehearsal"

    def __init__(self, script: Script, play: Play) -> None:
        if script.absent is not None:
            raise DriverFault(script.absent, fault_kind(script.absent), "as the script has it")
        self._script, self._play = script, play
        self._memory: dict[int, Any] = {}
        self._now_seconds = 0.0
        self._waiting: dict[int, tuple[str, dict[str, int], dict[str, int]]] = {}
        self._broken: str | None = None
        self.log: list[str] = []

    @property
    def last_level_cache_bytes(self) -> int:
        """See Driver."""
        return self._script.last_level_cache_bytes

    def load(self, cubin: bytes) -> Any:
        """See Driver."""
        self._enter("load")
        if not cubin:
            raise DriverFault("CUDA_ERROR_INVALID_IMAGE", "refused", "an empty cubin")
        return cubin

    def function(self, module: Any, symbol: str, *, dynamic_shared_bytes: int) -> Any:
        """See Driver. A cubin of a rehearsal is text that names its symbols."""
        self._enter("function")
        if symbol.encode() not in module:
            raise DriverFault("CUDA_ERROR_NOT_FOUND", "refused", symbol)
        return symbol

    def bind(
        self,
        function: Any,
        *,
        blocks: int,
        threads: int,
        arguments: Sequence[tuple[Argument, int]],
    ) -> Call:
        """See Driver."""
        self._enter("bind")
        if not 0 < threads <= 1024 or blocks < 1:
            raise DriverFault("CUDA_ERROR_INVALID_VALUE", "refused", f"{blocks} blocks of {threads} threads")
        tensors = {argument.name: value for argument, value in arguments if argument.kind == "tensor"}
        dims = {argument.name: value for argument, value in arguments if argument.kind == "dim"}
        seconds = self._script.seconds_per_call.get(function, self._script.usual_seconds)
        key = id(tensors)

        def call() -> None:
            self._enter("launch")
            self._now_seconds += seconds
            self._waiting[key] = (function, tensors, dims)

        return call

    def bind_copy(self, target: int, source: int, size_bytes: int) -> Call:
        """See Driver."""
        self._enter("bind_copy")

        def call() -> None:
            self._enter("copy")
            self._now_seconds += self._script.usual_seconds

        return call

    def capture(self, calls: Sequence[Call]) -> Call:
        """See Driver."""
        self._enter("capture")

        def replay() -> None:
            for call in calls:
                call()

        return replay

    def allocate(self, size_bytes: int) -> int:
        """See Driver."""
        self._enter("allocate")
        held = sum(ctypes.sizeof(memory) for memory in self._memory.values())
        if held + size_bytes > self._script.memory_bytes:
            raise DriverFault("CUDA_ERROR_OUT_OF_MEMORY", "out_of_memory", f"{held} + {size_bytes} bytes")
        memory = (ctypes.c_ubyte * (size_bytes + _ALIGNMENT_BYTES))()
        address = ctypes.addressof(memory)
        address += -address % _ALIGNMENT_BYTES
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        """See Driver."""
        self._enter("free")
        del self._memory[address]

    def upload(self, address: int, host_address: int, size_bytes: int) -> None:
        """See Driver."""
        self.synchronize()
        self._enter("upload")
        ctypes.memmove(address, host_address, size_bytes)

    def download(self, host_address: int, address: int, size_bytes: int) -> None:
        """See Driver."""
        self.synchronize()
        self._enter("download")
        ctypes.memmove(host_address, address, size_bytes)

    def event(self) -> Any:
        """See Driver."""
        self._enter("event")
        return [0.0]

    def record(self, event: Any) -> None:
        """See Driver."""
        self._enter("record")
        event[0] = self._now_seconds

    def elapsed_seconds(self, start: Any, end: Any) -> float:
        """See Driver."""
        self._enter("elapsed")
        return float(end[0] - start[0])

    def synchronize(self) -> None:
        """See Driver."""
        self._enter("synchronize")
        waiting, self._waiting = list(self._waiting.values()), {}
        for symbol, tensors, dims in waiting:
            if symbol in self._script.faults:
                self._broken = self._script.faults[symbol]
                self._enter("synchronize")
            while symbol in self._script.hangs:
                time.sleep(60)
            if symbol not in self._script.idle:
                self._play(symbol, tensors, dims)

    def close(self) -> None:
        """See Driver."""
        self._memory.clear()

    def _enter(self, what: str) -> None:
        """A poisoned context answers every call with the fault that poisoned it."""
        self.log.append(what)
        if self._broken is not None:
            raise DriverFault(self._broken, fault_kind(self._broken), f"in {what}, as the script has it")


class RehearsalCard:
    """See ``card.Card``."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._looks, self._counts = 0, 0

    def state(self) -> CardState:
        """See Card."""
        place, self._looks = self._looks, self._looks + 1
        return CardState(
            sm_clock_hz=_at(self._script.clocks_hz, place),
            memory_clock_hz=None,
            temperature_celsius=None,
            throttle_reasons=_at(self._script.throttle_reasons, place),
        )

    def processes(self, *, since_seconds: float) -> tuple[Process, ...]:
        """See Card."""
        place, self._counts = self._counts, self._counts + 1
        return tuple(Process(pid=pid, active=True) for pid in _at(self._script.strangers, place))

    def close(self) -> None:
        """See Card."""


def _at(values: Sequence[Any], place: int) -> Any:
    return values[min(place, len(values) - 1)]


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(one) if isinstance(one, list) else one for one in value)

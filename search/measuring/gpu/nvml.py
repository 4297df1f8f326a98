"""What NVML tells of the cards of this machine. Child side: the library may hang, and is never loaded by a service.

Reads only. Values that a card does not have are None; a card that is gone is a DriverFault of kind ``lost``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from search.measuring.gpu.card import CardState, Process
from search.measuring.gpu.driver import DriverFault

_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's clocks event reasons (formerly throttle reasons)."""
_CORES_64 = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
"""Compute capabilities whose multiprocessors have 64 cores; later ones and 6.1 have 128."""
_LOST = ("GPU is lost", "Uninitialized", "Driver Not Loaded")


class NvmlCard:
    """See ``card.Card``: one card, by its uuid."""

    def __init__(self, uuid: str) -> None:
        self._api = api = started()
        try:
            self._handle = api.nvmlDeviceGetHandleByUUID(uuid)
        except api.NVMLError as error:
            raise DriverFault("NVML_NO_SUCH_CARD", "lost", f"{uuid}: {error}") from None

    def state(self) -> CardState:
        """See Card."""
        api, card = self._api, self._handle
        # Newer packages call throttle reasons event reasons.
        newer = getattr(api, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = _optional(lambda: (newer or api.nvmlDeviceGetCurrentClocksThrottleReasons)(card)) or 0
        milliwatts = _optional(lambda: api.nvmlDeviceGetPowerUsage(card))
        return CardState(
            sm_clock_hz=_hertz(_optional(lambda: api.nvmlDeviceGetClockInfo(card, api.NVML_CLOCK_SM))),
            memory_clock_hz=_hertz(_optional(lambda: api.nvmlDeviceGetClockInfo(card, api.NVML_CLOCK_MEM))),
            temperature_celsius=_optional(lambda: api.nvmlDeviceGetTemperature(card, api.NVML_TEMPERATURE_GPU)),
            throttle_reasons=tuple(name for bit, name in _REASONS.items() if reasons & bit),
            power_watts=None if milliwatts is None else milliwatts / 1000,
        )

    def processes(self, *, since_seconds: float) -> tuple[Process, ...]:
        """See Card."""
        api, card = self._api, self._handle
        pids = [process.pid for process in _optional(lambda: api.nvmlDeviceGetComputeRunningProcesses(card)) or ()]
        since = round((time.time() - since_seconds) * 1e6)
        try:
            samples = api.nvmlDeviceGetProcessUtilization(card, since)
        except api.NVMLError_NotFound:  # no process did anything in that time
            samples = ()
        except api.NVMLError as error:
            _raise_if_lost(error)
            return tuple(Process(pid=pid, active=None) for pid in pids)
        busy = {sample.pid for sample in samples if sample.smUtil > 0 and sample.timeStamp > since}
        return tuple(Process(pid=pid, active=pid in busy) for pid in sorted({*pids, *busy}))

    def close(self) -> None:
        """See Card."""
        with contextlib.suppress(Exception):
            self._api.nvmlShutdown()


def started() -> Any:
    """NVML's module, initialised. DriverFault saying why there is none."""
    try:
        import pynvml
    except ImportError as error:
        message = f"nvidia-ml-py cannot be imported: {error}"
        raise DriverFault("NVML_NO_PACKAGE", "lost", message) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DriverFault("NVML_NOT_STARTED", "lost", str(error)) from None
    return pynvml


def cards() -> list[dict[str, Any]]:
    """One JSON object of facts per card, in the order of their places on the bus; ``lost`` alone, with the reason, of
    one that does not answer. DriverFault when there is no driver that works."""
    api = started()
    try:
        count = api.nvmlDeviceGetCount()
        driver = _text(api.nvmlSystemGetDriverVersion())
        return [_card(api, place, driver) for place in range(count)]
    except api.NVMLError as error:
        raise DriverFault("NVML_ERROR", "lost", str(error)) from None
    finally:
        with contextlib.suppress(api.NVMLError):
            api.nvmlShutdown()


def _card(api: Any, place: int, driver: str) -> dict[str, Any]:
    """The facts of one card; what is wrong with it says nothing of the others."""
    try:
        return _facts(api, api.nvmlDeviceGetHandleByIndex(place), driver)
    except (api.NVMLError, DriverFault) as error:
        return {"lost": f"card {place} does not answer: {error}"}


def _facts(api: Any, card: Any, driver: str) -> dict[str, Any]:
    """What a card is, and how it is set up now."""
    major, minor = api.nvmlDeviceGetCudaComputeCapability(card)
    ecc = _optional(lambda: api.nvmlDeviceGetEccMode(card))
    limit = _optional(lambda: api.nvmlDeviceGetEnforcedPowerLimit(card))
    mig = _optional(lambda: api.nvmlDeviceGetMigMode(card))
    processes = _optional(lambda: api.nvmlDeviceGetComputeRunningProcesses(card))

    def clock(kind: int, read: Callable[[Any, int], int]) -> int | None:
        return _hertz(_optional(lambda: read(card, kind)))

    kinds = {"sm": api.NVML_CLOCK_SM, "memory": api.NVML_CLOCK_MEM}
    return {
        "name": _text(api.nvmlDeviceGetName(card)),
        "uuid": _text(api.nvmlDeviceGetUUID(card)),
        "compute_capability": [int(major), int(minor)],
        "multiprocessors": _multiprocessors(api, card, (int(major), int(minor))),
        "memory_bytes": int(api.nvmlDeviceGetMemoryInfo(card).total),
        "driver_version": driver,
        "clocks_hz": {name: clock(kind, api.nvmlDeviceGetClockInfo) for name, kind in kinds.items()},
        "max_clocks_hz": {name: clock(kind, api.nvmlDeviceGetMaxClockInfo) for name, kind in kinds.items()},
        "application_clocks_hz": {
            name: clock(kind, api.nvmlDeviceGetApplicationsClock) for name, kind in kinds.items()
        },
        "persistence": _flag(_optional(lambda: api.nvmlDeviceGetPersistenceMode(card))),
        "ecc": _flag(ecc[0] if ecc else None),
        "mig": _flag(mig[0] if mig else None),
        "power_limit_watts": None if limit is None else limit / 1000,
        "compute_processes": None if processes is None else [process.pid for process in processes],
    }


def _multiprocessors(api: Any, card: Any, capability: tuple[int, int]) -> int | None:
    """NVML counts cores alone."""
    cores = _optional(lambda: api.nvmlDeviceGetNumGpuCores(card))
    return None if cores is None else int(cores) // (64 if capability in _CORES_64 else 128)


def _optional(read: Callable[[], Any]) -> Any:
    import pynvml

    try:
        return read()
    except pynvml.NVMLError as error:
        _raise_if_lost(error)
        return None
    except AttributeError:  # the package is older than the question
        return None


def _raise_if_lost(error: Exception) -> None:
    if any(word in str(error) for word in _LOST):
        raise DriverFault("NVML_GPU_IS_LOST", "lost", str(error)) from error


def _hertz(megahertz: int | None) -> int | None:
    return None if megahertz is None else int(megahertz) * 1_000_000


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

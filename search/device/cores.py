"""Which of this machine's cores measure for which device, and which ones compile meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search.device.spec import DeviceSpec


def with_own_cores(devices: Sequence[DeviceSpec]) -> tuple[DeviceSpec, ...]:
    """The devices with a measuring core each, the last ones of the machine, and the other cores for compiling.

    A core that launches kernels on a GPU is as busy as one that runs them: what else it does shows in the times. Where
    no core would be left to compile, all measure on the last one, and take turns (``measuring.device_lock``). A device
    without a measuring core stays as it is; the cores are those that the devices have together.
    """
    cores = sorted({core for device in devices for core in (*device.measure_cpus, *device.compile_cpus)})
    measuring = [device.id for device in devices if device.measure_cpus]
    apart = len(cores) > len(measuring)
    own = {id_: cores[-1 - place if apart else -1] for place, id_ in enumerate(measuring)}
    compiling = tuple(core for core in cores if core not in own.values()) or tuple(cores)
    return tuple(
        replace(device, measure_cpus=(own[device.id],), compile_cpus=compiling) if device.id in own else device
        for device in devices
    )

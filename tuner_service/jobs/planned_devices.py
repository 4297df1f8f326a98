"""Devices that are described well enough to plan for, attached or not: planning compiles and measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from catalogs import DeviceIdentity, sha256_hex
from search.device.probe import COMPILE_ONLY_DEVICES, compile_only
from search.device.spec import DeviceSpec
from search.lowering.cuda.architectures import limits_document

NEVER_ATTACHED = "it was never attached"


@cache
def planned_devices() -> Mapping[str, DeviceSpec]:
    """Some CPU, and every compile-only device, by id. None of them is there: they serve plans alone."""
    untimed = (
        compile_only(name, toolchain={}, unavailable=NEVER_ATTACHED, limits=limits_document(name.removeprefix("cuda-")))
        for name in COMPILE_ONLY_DEVICES
    )
    return {spec.id: spec for spec in (_some_cpu(), *untimed)}


def _some_cpu() -> DeviceSpec:
    return DeviceSpec(
        id="cpu",
        kind="cpu",
        target="cpu",
        name="CPU",
        identity={},
        identity_digest=DeviceIdentity(kind="cpu", identity={}).digest,
        toolchain={},
        toolchain_fingerprint=sha256_hex({}),
        available=False,
        reason=NEVER_ATTACHED,
    )

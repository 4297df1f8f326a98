"""From what a GPU says of itself to a DeviceSpec. Pure; ``search.measuring.gpu.attached`` asks the card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from catalogs import DeviceIdentity, sha256_hex
from search.device.spec import DeviceSpec

ABSENT_KIND = "nvidia"
"""Id and kind of the device that stands for GPUs that are not there."""
_IDENTITY = ("name", "compute_capability", "multiprocessors", "memory_bytes", "ecc", "mig", "power_limit_watts")
"""What makes two cards alike: a winner of one serves the other. Not its uuid, and not its driver, which is of the
toolchain."""


def gpu_device(
    facts: Mapping[str, Any],
    *,
    architecture: str,
    toolchain: Mapping[str, Any],
    unavailable: str | None,
    measure_cpus: Sequence[int],
    compile_cpus: Sequence[int],
    limits: Mapping[str, int] | None = None,
) -> DeviceSpec:
    """A GPU by its facts (``nvml.cards``); ``architecture``: that of its code. Its driver joins the toolchain.

    ``limits`` are the architecture's documented ones, where they are known.
    """
    kind = kind_of(facts["name"])
    identity = {
        **{name: facts.get(name) for name in _IDENTITY},
        "max_clocks_hz": facts.get("max_clocks_hz"),
        "application_clocks_hz": facts.get("application_clocks_hz"),
    }
    described = {**toolchain, "driver_version": facts["driver_version"]}
    return DeviceSpec(
        id=f"{kind}:{short_uuid(facts['uuid'])}",
        kind=kind,
        target="cuda",
        name=facts["name"],
        identity=identity,
        identity_digest=DeviceIdentity(kind=kind, identity=identity).digest,
        toolchain=described,
        toolchain_fingerprint=sha256_hex(described),
        available=unavailable is None,
        reason=unavailable,
        architecture=architecture,
        limits=limits or {},
        measure_cpus=tuple(measure_cpus),
        compile_cpus=tuple(compile_cpus),
        uuid=facts["uuid"],
        card=dict(facts),
    )


def absent_gpu(reason: str, *, place: int | None = None) -> DeviceSpec:
    """The device that says why there is no GPU, or none at a place among others."""
    identity: dict[str, Any] = {}
    return DeviceSpec(
        id=ABSENT_KIND if place is None else f"{ABSENT_KIND}:{place}",
        kind=ABSENT_KIND,
        target="cuda",
        name="NVIDIA GPU",
        identity=identity,
        identity_digest=DeviceIdentity(kind=ABSENT_KIND, identity=identity).digest,
        toolchain={},
        toolchain_fingerprint=sha256_hex({}),
        available=False,
        reason=reason,
    )


def kind_of(name: str) -> str:
    """``NVIDIA H200`` → ``nvidia-h200``."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").removeprefix("nvidia-")
    return f"nvidia-{words}"


def short_uuid(uuid: str) -> str:
    """The first twelve hex digits of ``GPU-5f3c1a2b-…``."""
    return uuid.lower().removeprefix("gpu-").replace("-", "")[:12]


def counts(shown: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names cards by number, which is CUDA's own unless it is told to count otherwise."""
    return shown is not None and any(part.strip().isdigit() for part in shown.split(","))


def visible(cards: Sequence[Mapping[str, Any]], shown: str | None) -> list[Mapping[str, Any]]:
    """The cards that CUDA_VISIBLE_DEVICES (None: not set) shows: by place on the bus, or by the beginning of a uuid."""
    if shown is None:
        return list(cards)
    found: list[Mapping[str, Any]] = []
    for word in (part.strip().lower() for part in shown.split(",")):
        named = [card for card in cards if word.startswith("gpu-") and str(card.get("uuid")).lower().startswith(word)]
        named += cards[int(word) : int(word) + 1] if word.isdigit() else []
        if not named:
            break  # as CUDA has it: the first word that names nothing ends the list
        found += named
    return found


def of_uuids(cards: Sequence[Mapping[str, Any]], uuids: Sequence[str]) -> list[Mapping[str, Any]]:
    """The cards with these uuids, in their order."""
    by_uuid = {str(card["uuid"]).lower(): card for card in cards if "uuid" in card}
    return [by_uuid[uuid.lower()] for uuid in uuids if uuid.lower() in by_uuid]


def code_architecture(major: int, minor: int) -> str:
    """What code is generated for on a card: its own architecture, since its limits are not those of its relatives."""
    return f"sm_{major}{minor}"

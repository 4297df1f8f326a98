"""Which devices of a host a worker attaches: by kind, by id, or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search.device.probe import COMPILE_ONLY_DEVICES
from search.device.spec import DeviceSpec
from search.errors import InvalidInput, Problem


def named(devices: Sequence[DeviceSpec], host_name: str | None) -> tuple[DeviceSpec, ...]:
    """The devices with ids that name the host, where the machine itself has no number: machines of one make are many.

    A GPU has its uuid, and what exists in a compiler alone is nowhere.
    """
    suffix = f"@{host_name}" if host_name else ""
    return tuple(
        replace(spec, id=spec.id + suffix)
        if spec.target == "cpu" and spec.timed and not spec.id.endswith(suffix or "\0") and suffix
        else spec
        for spec in devices
    )


def is_selected(spec: DeviceSpec, words: Sequence[str]) -> bool:
    """Whether one of these words means a device: ``cpu``, ``nvidia``, a kind, an id; without words, every one does."""
    return not words or any(word in (spec.id, spec.kind) or spec.kind.startswith(f"{word}-") for word in words)


def compile_only_names(words: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """The compile-only devices that the words ask for; without words, the default ones."""
    return tuple(name for name in COMPILE_ONLY_DEVICES if name in (words or default))


def check_selection(devices: Sequence[DeviceSpec], words: Sequence[str]) -> None:
    """InvalidInput for each word that means no device of this host."""
    missing = [
        word
        for word in words
        if word not in COMPILE_ONLY_DEVICES and not any(is_selected(spec, [word]) for spec in devices)
    ]
    if missing:
        allowed = sorted({one for spec in devices for one in (spec.kind, spec.id)} | set(COMPILE_ONLY_DEVICES))
        raise InvalidInput(
            [
                Problem(field="--device", value=word, message="this host has no such device", allowed=allowed)
                for word in missing
            ]
        )

"""Who is this machine? The identity of its CPU from the operating system, with the standard library alone.

Two machines with equal identities may share a winner; anything that changes the code that runs or how fast it runs
relative to its neighbours (model, instruction set, caches) is part of it. Core count and clock are not: winners are
measured on one pinned thread.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CPUINFO_FIELDS = {
    "vendor_id": "vendor",
    "model name": "model",
    "cpu family": "family",
    "model": "model_number",
    "stepping": "stepping",
    "CPU implementer": "implementer",
    "CPU part": "part",
    "CPU variant": "variant",
    "CPU revision": "revision",
}
_ISA_PREFIXES = (
    *("sse", "ssse", "avx", "amx", "fma", "bmi", "f16c", "aes", "vaes", "pclmul", "vpclmul", "gfni", "adx", "sha"),
    *("popcnt", "abm", "movbe", "xop", "tbm", "asimd", "sve", "sme", "fp", "bf16", "i8mm", "crc32", "atomics"),
)
"""Instruction sets that a compiler may use; the kernel's and hypervisor's own words in /proc/cpuinfo are left out."""
_CACHE_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, kw_only=True)
class DeviceIdentity:
    """A device's kind, its identity, and the digest under which winners are keyed."""

    kind: str
    identity: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """sha256 (hex) of kind and identity in canonical JSON."""
        known: str | None = self.__dict__.get("_digest")
        if known is None:
            document = {"kind": self.kind, "identity": dict(self.identity)}
            known = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
            self.__dict__["_digest"] = known  # lookups ask for it at every call
        return known


@functools.cache
def this_device() -> DeviceIdentity:
    """The CPU of this machine. Reads /proc and /sys (Linux) or sysctl (macOS) once; never raises."""
    uname = os.uname()
    identity: dict[str, Any] = {"architecture": uname.machine, "system": uname.sysname}
    if identity["system"] == "Darwin":
        identity.update(_darwin())
    else:
        identity.update(_linux())
    return DeviceIdentity(kind="cpu", identity=identity)


def _linux() -> dict[str, Any]:
    out: dict[str, Any] = {}
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
    except OSError:
        first = ""
    for line in first.splitlines():
        name, _, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if name in _CPUINFO_FIELDS:
            out[_CPUINFO_FIELDS[name]] = value
        elif name in ("flags", "Features"):
            out["isa"] = sorted(word for word in value.split() if word.startswith(_ISA_PREFIXES))
    out["caches"] = _linux_caches()
    return out


def _linux_caches() -> list[dict[str, Any]]:
    caches = []
    for folder in sorted(_CACHE_ROOT.glob("index*")):
        try:
            read = {f: (folder / f).read_text().strip() for f in ("level", "type", "size", "coherency_line_size")}
        except OSError:
            continue  # a cache that the kernel does not describe cannot be told apart
        caches.append(
            {
                "level": int(read["level"]),
                "type": read["type"].lower(),
                "size": read["size"],
                "line_bytes": int(read["coherency_line_size"]),
            }
        )
    return sorted(caches, key=lambda c: (c["level"], c["type"]))


def _darwin() -> dict[str, Any]:
    import subprocess  # 5 ms of import time that Linux need not pay

    out: dict[str, Any] = {}
    for name in ("machdep.cpu.brand_string", "hw.cachelinesize", "hw.l1dcachesize", "hw.l2cachesize"):
        try:
            run = subprocess.run(
                ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if run.returncode == 0:
            out[name] = run.stdout.strip()
    return out

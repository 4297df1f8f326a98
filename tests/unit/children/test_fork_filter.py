"""The filter's program, run by an interpreter of the few instructions it has: also for the machine that this is not."""

from __future__ import annotations

import errno
import struct

import pytest

from search.children import fork_filter
from search.children.fork_filter import _MACHINES, _program, listen_to_forks

REFUSED, ALLOWED, MISSING = 0x7FC00000, 0x7FFF0000, 0x00050000 | errno.ENOSYS
THREAD = 0x00010000 | 0x00000100 | 17
X86, ARM, I386, ARM32 = 0xC000003E, 0xC00000B7, 0x40000003, 0x40000028


def verdict(machine: str, architecture: int, number: int, first: int = 0) -> int:
    """What the kernel would do with a call."""
    program = list(struct.iter_unpack("HBBI", _program(_MACHINES[machine], REFUSED)))
    data = struct.pack("=iIQQ", number, architecture, 0, first)
    value = place = 0
    while True:
        code, yes, no, operand = program[place]
        place += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x06:
                return int(operand)
            case _:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
                place += yes if holds else no


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "first", "expected"),
    [
        ("x86_64", X86, 57, 0, REFUSED),  # fork
        ("x86_64", X86, 58, 0, REFUSED),  # vfork
        ("x86_64", X86, 56, 17, REFUSED),  # clone with SIGCHLD alone, as fork() does it
        ("x86_64", X86, 56, 0x4111, REFUSED),  # clone with CLONE_VM | CLONE_VFORK, as posix_spawn() does it
        ("x86_64", X86, 56, THREAD, ALLOWED),
        ("x86_64", X86, 56, THREAD | 1 << 40, ALLOWED),
        ("x86_64", X86, 435, 0, MISSING),  # clone3
        ("x86_64", X86, 0x40000000 | 57, 0, MISSING),  # x32
        ("x86_64", I386, 2, 0, MISSING),
        ("x86_64", X86, 220, 0, ALLOWED),  # aarch64's number of clone
        ("x86_64", X86, 59, 0, ALLOWED),  # execve
        ("x86_64", X86, 0, 0, ALLOWED),
        ("aarch64", ARM, 220, 17, REFUSED),
        ("aarch64", ARM, 220, 0x4111, REFUSED),
        ("aarch64", ARM, 220, THREAD, ALLOWED),
        ("aarch64", ARM, 435, 0, MISSING),
        ("aarch64", ARM, 57, 0, ALLOWED),  # close
        ("aarch64", ARM, 56, 0, ALLOWED),  # openat
        ("aarch64", ARM32, 2, 0, MISSING),
    ],
)
def test_calls_and_what_becomes_of_them(
    machine: str, architecture: int, number: int, first: int, expected: int
) -> None:
    assert verdict(machine, architecture, number, first) == expected


def test_a_machine_without_a_program_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_filter, "_MACHINES", {})
    with pytest.raises(OSError, match="no filter is written for"):
        listen_to_forks()

"""A seccomp filter under which this process starts threads and no processes: the BPF program, and putting it in force.

Linux on x86_64 and aarch64. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_TSYNC, _NEW_LISTENER, _TSYNC_ESRCH = 1, 8, 16
_ALLOW, _USER_NOTIF, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_CLONE_THREAD = 0x00010000
_CLONE3 = 435
_LOAD, _JUMP_EQUAL, _JUMP_NOT_BELOW, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data``; of the first argument the lower half."""
_X32_BIT = 0x40000000


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """What the kernel calls an architecture, and the numbers of its system calls."""

    audit_name: int
    seccomp: int
    clone: int
    forks: tuple[int, ...] = ()
    highest: int | None = None
    """Numbers from here on are another calling convention's."""


_MACHINES = {
    "x86_64": _Machine(audit_name=0xC000003E, seccomp=317, clone=56, forks=(57, 58), highest=_X32_BIT),
    "aarch64": _Machine(audit_name=0xC00000B7, seccomp=277, clone=220),
}


def listen_to_forks() -> int:
    """Put the filter in force for every thread, present and future; the descriptor on which each fork waits for its
    answer. OSError where the system has no such thing."""
    machine = _machine()
    # With TSYNC_ESRCH a thread that cannot be synchronised is an error, and what is returned is a descriptor.
    return _install(machine, _program(machine, _USER_NOTIF), _NEW_LISTENER | _TSYNC | _TSYNC_ESRCH)


def refuse_forks() -> None:
    """The same with an answer fixed in advance (EAGAIN), which tells nobody. OSError."""
    machine = _machine()
    if _install(machine, _program(machine, _ERRNO | errno.EAGAIN), _TSYNC):
        raise OSError(errno.ESRCH, "a thread already has a filter of its own")


def _machine() -> _Machine:
    name = os.uname().machine
    if name not in _MACHINES or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(errno.ENOSYS, f"no filter is written for {name}")
    return _MACHINES[name]


def _program(machine: _Machine, refused: int) -> bytes:
    """fork, vfork, and clone of anything but a thread: ``refused``. clone3, whose flags are out of a filter's sight,
    does not exist: C libraries then use clone. Neither do calls of another convention, which have other numbers."""
    missing = _ERRNO | errno.ENOSYS
    tests = [
        *([(_JUMP_NOT_BELOW, machine.highest, "missing")] if machine.highest is not None else []),
        (_JUMP_EQUAL, _CLONE3, "missing"),
        *((_JUMP_EQUAL, number, "refused") for number in machine.forks),
    ]
    lines: list[tuple[int, int, str, str]] = [  # code, value, where to go if so, and if not
        (_LOAD, _ARCHITECTURE, "", ""),
        (_JUMP_EQUAL, machine.audit_name, "", "missing"),
        (_LOAD, _NUMBER, "", ""),
        *((code, value, verdict, "") for code, value, verdict in tests),
        (_JUMP_EQUAL, machine.clone, "", "allowed"),
        (_LOAD, _FIRST_ARGUMENT, "", ""),
        (_JUMP_ANY_BIT, _CLONE_THREAD, "allowed", "refused"),
    ]
    verdicts = {"allowed": _ALLOW, "refused": refused, "missing": missing}
    places = {verdict: len(lines) + order for order, verdict in enumerate(verdicts)}
    program = [
        # A jump counts the instructions that it leaps over.
        (code, *(places[goal] - place - 1 if goal else 0 for goal in goals), value)
        for place, (code, value, *goals) in enumerate(lines)
    ]
    program += [(_RETURN, 0, 0, answer) for answer in verdicts.values()]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _install(machine: _Machine, program: bytes, flags: int) -> int:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    library = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    # Without privileges only a process that can gain none may filter itself.
    if library.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    library.syscall.restype = ctypes.c_long
    code = library.syscall(
        ctypes.c_long(machine.seccomp),
        ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_ulong(flags),
        ctypes.byref(Program(len(program) // 8, program)),
    )
    if code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(code)

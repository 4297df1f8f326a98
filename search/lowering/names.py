"""Identifiers of the emitted text. Each kind of thing has its own prefix, so no two kinds can ever collide.

A program's names are validated again here, although the verifier has seen them: this is the last gate before text
that will be executed. The prefix keeps them away from the keywords of Python and C and from TileLang's own names.
"""

from __future__ import annotations

import re

_LEGAL = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,95}\Z")


def checked(name: str) -> str:
    """The same name; ValueError unless it is a plain ASCII identifier."""
    if not _LEGAL.match(name):
        raise ValueError(f"not an identifier: {name[:80]!r}")
    return name


def tensor(name: str) -> str:
    """A tensor argument (global memory)."""
    return f"g_{checked(name)}"


def dim(name: str) -> str:
    """A dim that is an argument."""
    return f"d_{checked(name)}"


def tile(name: str) -> str:
    """A private tile."""
    return f"p_{checked(name)}"


def scalar(name: str) -> str:
    """A row scalar (one slot per row of the packet)."""
    return f"s_{checked(name)}"


def partials(reducer: str) -> str:
    """A reducer's accumulators."""
    return f"a_{checked(reducer)}"


def component(reducer: str, name: str) -> str:
    """A structured reducer's accumulators of one component (component names have no underscore)."""
    return f"c_{checked(name)}_{checked(reducer)}"


def temporary(reducer: str, name: str) -> str:
    """A value on the way to a structured reducer's new state."""
    return f"t_{checked(name)}_{checked(reducer)}"


def array(name: str) -> str:
    """A finalized reducer array (one per row of the packet)."""
    return f"r_{checked(name)}"


def counter(name: str) -> str:
    """The index of a serial loop."""
    return f"i_{checked(name)}"


def element(reducer: str) -> str:
    """The element of a reducer array that an update contributes to."""
    return f"n_{checked(reducer)}"


def value(name: str) -> str:
    """A value of one element, inside one traversal."""
    return f"v_{checked(name)}"


def stream(tensor_name: str) -> str:
    """The packet that waits to be streamed to a tensor."""
    return f"b_{checked(tensor_name)}"


def word(name: str) -> str:
    """The 16 bits of one element as they are stored, inside one traversal."""
    return f"w_{checked(name)}"


def block(name: str) -> str:
    """A pass's float32 values of what is stored in 16 bits: read from it, or about to be written to it."""
    return f"h_{checked(name)}"


def staged(name: str) -> str:
    """A pass's elements of a tensor in registers: read from it, or about to be written to it (a GPU's fragment)."""
    return f"q_{checked(name)}"


def delivered(reducer: str) -> str:
    """What a deferred reducer delivers, one per row of the block."""
    return f"f_{checked(reducer)}"


def queue(reducer: str) -> str:
    """A pass's contributions to a strict fold, in shared memory."""
    return f"z_{checked(reducer)}"


def queued_element(reducer: str) -> str:
    """Which elements of the array a pass's contributions to a strict fold are for, in shared memory."""
    return f"y_{checked(reducer)}"


def plain(name: str) -> str:
    """The program's name of an argument, from its emitted one."""
    return name[2:]

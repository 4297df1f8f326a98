"""Opening and closing libraries whose start and end run foreign code. Child side; no numpy.

As ctypes does it, but without the interpreter's lock: what a library's constructor tries may have to be answered by a
thread of ours (``search.children.forks``), which needs that lock.
"""

from __future__ import annotations

import ctypes
import os

_SYSTEM = ctypes.CDLL(None)
_SYSTEM.dlopen.argtypes, _SYSTEM.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
_SYSTEM.dlclose.argtypes, _SYSTEM.dlclose.restype = (ctypes.c_void_p,), ctypes.c_int
_SYSTEM.dlerror.argtypes, _SYSTEM.dlerror.restype = (), ctypes.c_char_p


def open_library(path: str) -> ctypes.CDLL:
    """Open it with all its symbols resolved, and none given to others. OSError in the loader's words."""
    handle = _SYSTEM.dlopen(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
    if not handle:
        raise OSError((_SYSTEM.dlerror() or b"the loader does not say why").decode(errors="replace"))
    return ctypes.CDLL(path, handle=handle)


def close_library(library: ctypes.CDLL) -> None:
    """Close it; nothing of it may be used any more."""
    _SYSTEM.dlclose(library._handle)

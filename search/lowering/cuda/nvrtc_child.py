"""The NVRTC child: ``python -m search.lowering.cuda.nvrtc_child ENTRY LIBRARY BUILTINS``.

NVRTC compiles inside the process that loads it: it cannot be stopped, and what kills it kills the process. So it has
one of its own. It stays, because a header that was compiled once is kept by the process (``-pch``).

Commands and answers are the JSON lines of ``search.children``:

``{"about": true}``                        → ``{"version": [13, 0], "architectures": [75, …]}``
``{"source": text, "options": [...]}``     → ``{"error": null or words, "log": text, "cubin": base64}``
``{"failed": reason}``                     the library does not load or does not answer

Standard library only.
"""

from __future__ import annotations

import base64
import ctypes
import sys
from collections.abc import Mapping
from typing import Any

from search.children.entry import enter

_LOG_CHARS = 1 << 18


class _Library:
    """libnvrtc, loaded: the handful of its calls that a compile takes."""

    def __init__(self, library: str, builtins: str) -> None:
        ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)  # it looks for this one by name, outside its own folder
        self._lib = ctypes.CDLL(library)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def about(self) -> dict[str, Any]:
        """Version and supported architectures."""
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._require(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self._require(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._require(self._lib.nvrtcGetSupportedArchs(numbers))
        return {"version": [major.value, minor.value], "architectures": list(numbers)}

    def compile(self, source: str, options: list[str]) -> dict[str, Any]:
        """One text to a cubin; what went wrong in ``error``."""
        program = ctypes.c_void_p()
        text = source.encode()
        self._require(self._lib.nvrtcCreateProgram(ctypes.byref(program), text, b"batch.cu", 0, None, None))
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            code = self._lib.nvrtcCompileProgram(program, len(options), words)
            error = None if code == 0 else self._words(code)
            log = self._read(program, "Program", "Log").decode(errors="replace").rstrip("\0")[-_LOG_CHARS:]
            cubin = b"" if error else self._read(program, "CUBIN", "")
            return {"error": error, "log": log, "cubin": base64.b64encode(cubin).decode()}
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, kind: str, suffix: str) -> bytes:
        size = ctypes.c_size_t()
        self._require(self._lib[f"nvrtcGet{kind}{suffix}Size"](program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self._require(self._lib[f"nvrtcGet{kind}{suffix}"](program, data))
        return data.raw

    def _words(self, code: int) -> str:
        said: bytes | None = self._lib.nvrtcGetErrorString(code)
        return said.decode(errors="replace") if said else f"NVRTC error {code}"

    def _require(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self._words(code))


def main() -> None:
    """Enter, load the library, then serve commands until the parent closes its end."""
    channel = enter(sys.argv[1])
    library: _Library | None = None
    for command in channel.commands():
        try:
            if library is None:
                library = _Library(sys.argv[2], sys.argv[3])
            channel.answer(_answer(library, command))
        except (OSError, AttributeError, RuntimeError) as error:  # what ctypes and NVRTC raise
            channel.answer({"failed": str(error)[-500:]})


def _answer(library: _Library, command: Mapping[str, Any]) -> dict[str, Any]:
    if "source" in command:
        return library.compile(command["source"], command["options"])
    return library.about()


if __name__ == "__main__":
    main()

"""Bringing a compiled kernel into the child: verify, open, bind. Child side; no numpy."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search.lowering.contract import Artifact
from search.measuring.foreign_library import close_library, open_library
from search.measuring.timers import MAX_ARGUMENTS, NativeCall
from search.outcome import Rejected


class LoadProblem(Exception):  # noqa: N818 - carries a rejection, handled next to the call
    """The artifact cannot be run; ``rejection`` says why."""

    def __init__(self, rejection: Rejected) -> None:
        self.rejection = rejection
        super().__init__(rejection.reason)


def _problem(reason: str, **detail: object) -> LoadProblem:
    return LoadProblem(Rejected(stage="runtime", reason=reason, detail=detail))


class Libraries:
    """The shared libraries open in this process; a batch of kernels shares one."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], ctypes.CDLL] = {}

    def bind(self, artifact: Artifact, addresses: Mapping[str, int], dims: Mapping[str, int]) -> NativeCall:
        """The kernel bound to tensor addresses and dims. LoadProblem if the file, symbol or arguments are wrong."""
        library = self._library(artifact)
        try:
            function = library[artifact.symbol]
        except AttributeError as error:
            raise _problem("symbol_missing", symbol=artifact.symbol, message=str(error)) from None
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        if len(artifact.arguments) > MAX_ARGUMENTS:
            raise _problem("too_many_arguments", arguments=len(artifact.arguments), allowed=MAX_ARGUMENTS)
        values = []
        for argument in artifact.arguments:
            known = addresses if argument.kind == "tensor" else dims
            if argument.name not in known:
                raise _problem("unknown_argument", argument=argument.name, kind=argument.kind, allowed=sorted(known))
            values.append(known[argument.name])
        return NativeCall(address, values)

    def close(self) -> None:
        """Close every library; calls bound to them must not be used any more."""
        for library in self._open.values():
            close_library(library)
        self._open.clear()

    def _library(self, artifact: Artifact) -> ctypes.CDLL:
        key = (artifact.library_path, artifact.library_sha256)
        if key not in self._open:
            try:
                found = hashlib.sha256(Path(artifact.library_path).read_bytes()).hexdigest()
            except OSError as error:
                raise _problem("artifact_missing", path=artifact.library_path, message=str(error)) from None
            if found != artifact.library_sha256:
                raise _problem(
                    "artifact_changed", path=artifact.library_path, sha256=found, expected=artifact.library_sha256
                )
            try:
                self._open[key] = open_library(artifact.library_path)
            except OSError as error:
                raise _problem("load_failed", path=artifact.library_path, message=str(error)) from None
        return self._open[key]


_TYPES: dict[str, type[Any]] = {"tensor": ctypes.c_void_p, "dim": ctypes.c_int32}


def python_call(call: NativeCall, kinds: Sequence[str]) -> Callable[[], object]:
    """The kernel as a Python callable without arguments, for the ``e2e`` phases: ctypes dispatch is part of them.

    ``kinds`` are those of the artifact's arguments.
    """
    types = [_TYPES[kind] for kind in kinds]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(call.address)
    arguments = tuple(of_type(call.values[place]) for place, of_type in enumerate(types))
    return lambda: function(*arguments)

"""The toolchain's fingerprint: equal installations are one toolchain, whoever installed them and how."""

from __future__ import annotations

import importlib.metadata

import pytest

from search.lowering.cpu import toolchain

PACKAGED = ["tilelang/__init__.py,sha256=aa,10", "tilelang/lib/libtvm.so,sha256=bb,20"]
AS_A_DEPENDENCY = [
    *PACKAGED,
    "tilelang-0.1.15.dist-info/INSTALLER,sha256=cc,4",
    "tilelang-0.1.15.dist-info/RECORD,,",
]
BY_NAME = [
    "tilelang/__pycache__/__init__.cpython-311.pyc,,",
    *reversed(AS_A_DEPENDENCY),
    "tilelang-0.1.15.dist-info/REQUESTED,sha256=dd,0",
]


class Installed:
    version = "0.1.15"

    def __init__(self, lines: list[str], ending: str = "\n") -> None:
        self.lines, self.ending = lines, ending

    def read_text(self, name: str) -> str:
        assert name == "RECORD"
        return "".join(line + self.ending for line in self.lines)


def recorded(monkeypatch: pytest.MonkeyPatch, installed: Installed) -> str:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: installed)
    found: str = toolchain.fingerprint()["tilelang"]["record_sha256"]
    return found


def test_how_a_package_was_installed_is_no_other_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    one = recorded(monkeypatch, Installed(AS_A_DEPENDENCY))
    assert recorded(monkeypatch, Installed(BY_NAME)) == one
    assert recorded(monkeypatch, Installed(AS_A_DEPENDENCY, "\r\n")) == one


def test_another_file_of_the_package_is_another_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    one = recorded(monkeypatch, Installed(AS_A_DEPENDENCY))
    changed = [line.replace("sha256=aa", "sha256=ab") for line in AS_A_DEPENDENCY]
    assert recorded(monkeypatch, Installed(changed)) != one
    assert recorded(monkeypatch, Installed([*AS_A_DEPENDENCY, "tilelang/more.py,sha256=ee,1"])) != one

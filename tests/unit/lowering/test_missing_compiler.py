"""A compiler that is named and not there: each of the three variables says what stands at that place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from search.errors import ToolchainUnavailable
from search.lowering.cpu.toolchain import compiler
from search.lowering.cuda.toolchain import cuda_compiler
from search.measuring.simt.toolchain import cxx_compiler


@pytest.mark.parametrize(
    ("variable", "find"), [("TUNER_CC", compiler), ("TUNER_CXX", cxx_compiler), ("TUNER_NVCC", cuda_compiler)]
)
def test_a_directory_a_plain_file_and_nothing_are_told_apart(
    variable: str, find: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh")
    for given, said in {
        "": "is a directory; name the program in it",
        "plain": "no executable file",
        "no": "not found",
    }.items():
        monkeypatch.setenv(variable, str(tmp_path / given))
        with pytest.raises(ToolchainUnavailable, match=f"{given}' .*{said}.*{variable}"):
            find()

"""Kernels of installed packages: distributions as an installer leaves them, on the path of this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import search.program.library as library
from search.errors import InvalidInput
from search.program.document import dump_program
from search.program.library import kernel_document, kernels, package_problems
from search.program.resolve import resolve_case

DOUBLED = """
from search.program.library.kernel import define
from search.program.library.torch_call import TorchCall

print("a package may print")
KERNEL = define(
    {
        "name": "NAME",
        "dims": ["rows", "cols"],
        "axes": {"row": {"dim": "rows", "kind": "row"}, "col": {"dim": "cols", "kind": "column"}},
        "tensors": {
            "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
            "y": {"axes": ["row", "col"], "role": "output", "like": "x"},
        },
        "body": [{"store": {"tensor": "y", "over": ["col"], "value": "x + x"}}],
    },
    summary="y = 2 x",
    baseline=(TorchCall(function="torch.add", keywords={"input": "$x", "other": "$x"}, into="y", out="out"),),
)
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with one module and its entry points on the path: ``install(name, source, **points)``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget() -> None:
        library._from_packages.cache_clear()
        library._found.cache_clear()

    def put(name: str, source: str, **points: str) -> None:
        (tmp_path / f"{name}_kernels.py").write_text(source)
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{point} = {target}" for point, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[tuner.kernels]", *lines, ""]))
        forget()

    yield put
    monkeypatch.undo()
    forget()


def test_a_package_adds_a_kernel(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(kernels())
    install("good", DOUBLED.replace("NAME", "doubled"), doubled="good_kernels:KERNEL")
    assert set(kernels()) == before | {"doubled"}
    assert list(kernels()) == sorted(kernels())
    assert package_problems() == ()
    document = kernel_document(kernels()["doubled"])
    assert document["package"] == "good 1.2"
    assert kernel_document(kernels()["softmax"])["package"] is None
    case = resolve_case({"kernel": "doubled", "dims": {"rows": 2, "cols": 3}})
    assert not case.from_document
    assert capsys.readouterr().out == ""


def test_a_case_of_a_built_in_kernel_loads_no_package(install: Install) -> None:
    install("noisy", DOUBLED.replace("NAME", "noisy_twice"), one="noisy_kernels:KERNEL")
    named = {"kernel": "softmax", "dims": {"rows": 3, "cols": 5}}
    sent = {"program": dump_program(resolve_case(named).program), "dims": {"rows": 3, "cols": 5}}
    for document in (named, sent):
        resolve_case(document, admitted=True)
    assert "noisy_kernels" not in sys.modules
    assert resolve_case({**named, "kernel": "noisy_twice"}).program.name == "noisy_twice"
    assert "noisy_kernels" in sys.modules


def test_one_entry_point_may_give_several(install: Install) -> None:
    source = DOUBLED.replace("NAME", "first") + "FIRST = KERNEL\n" + DOUBLED.replace("NAME", "second")
    install("several", source + "KERNELS = [FIRST, KERNEL]\n", both="several_kernels:KERNELS")
    assert {"first", "second"} <= set(kernels())


BROKEN = {
    "raises": ("raise RuntimeError('no licence')", "KERNEL", "RuntimeError: no licence"),
    "exits": ("import sys; sys.exit(3)", "KERNEL", "SystemExit"),
    "syntax": ("def", "KERNEL", "SyntaxError"),
    "nothing": ("", "KERNEL", "AttributeError"),
    "text": ("KERNEL = ['softmax']", "KERNEL", "gives str"),
    "bare_text": ("KERNEL = 'softmax'", "KERNEL", "gives str"),
    "number": ("KERNEL = 3", "KERNEL", "TypeError"),
    "overrides": (DOUBLED.replace("NAME", "softmax"), "KERNEL", "'softmax' is a built-in kernel"),
    "illegal": (DOUBLED.replace("NAME", "wrong").replace('"x + x"', '"x + z"'), "KERNEL", "unknown name 'z'"),
    "baseline": (DOUBLED.replace("NAME", "wrong").replace("torch.add", "os.system"), "KERNEL", "no public function"),
    "renamed": (
        DOUBLED.replace("NAME", "wrong") + "from dataclasses import replace\nKERNEL = replace(KERNEL, name='other')",
        "KERNEL",
        "its program is called wrong",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_reported_and_left_out(name: str, install: Install) -> None:
    before = set(kernels())
    source, attribute, word = BROKEN[name]
    install(f"broken_{name}", source, point=f"broken_{name}_kernels:{attribute}")
    install("good_too", DOUBLED.replace("NAME", "doubled"), doubled="good_too_kernels:KERNEL")
    assert set(kernels()) == before | {"doubled"}
    (problem,) = package_problems()
    assert problem.package == f"broken_{name} 1.2"
    assert "point" in str(problem)
    assert word in problem.message


def test_a_name_that_two_packages_give_is_nobodys(install: Install) -> None:
    for package in ("one", "two"):
        install(package, DOUBLED.replace("NAME", "contested"), mine=f"{package}_kernels:KERNEL")
    assert "contested" not in kernels()
    assert [problem.package for problem in package_problems()] == ["one 1.2", "two 1.2"]
    assert all("one 1.2 (mine), two 1.2 (mine)" in problem.message for problem in package_problems())
    with pytest.raises(InvalidInput, match="unknown kernel"):
        resolve_case({"kernel": "contested", "dims": {"rows": 2, "cols": 3}})


def test_metadata_that_cannot_be_read_is_reported(install: Install, tmp_path: Path) -> None:
    install("damaged", "", point="damaged_kernels:KERNEL")
    (tmp_path / "damaged-1.2.dist-info" / "entry_points.txt").write_bytes(b"[tuner.kernels]\n\xff\xfe = \xff\n")
    library._from_packages.cache_clear()
    assert "softmax" in kernels()
    assert any("damaged" in problem.package for problem in package_problems())

"""Rules of the house that a linter does not know."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("catalogs", "search", "tuner_service", "migrations")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py") if "__pycache__" not in p.parts)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_file_holds_one_idea() -> None:
    long = {relative(path): lines for path in SOURCES if (lines := len(path.read_text().splitlines())) > 400}
    assert long == {}, "over 400 lines: it holds two ideas, split it"
    named = [relative(path) for path in SOURCES if path.stem in {"utils", "helpers", "manager", "common", "misc"}]
    assert named == []


def test_public_functions_say_what_they_do() -> None:
    assert len(SOURCES) > 400
    missing = [
        f"{relative(path)}: {node.name}"
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert missing == [], "no docstring"


def test_no_file_evaluates_or_unpickles() -> None:
    """``exec`` is allowed in the lowering child alone, on text whose every identifier we generated."""
    allowed_exec = {"search/lowering/modules.py"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "exec":
                    assert relative(path) in allowed_exec, relative(path)
                assert node.func.id != "eval", relative(path)
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {a.name for a in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}, relative(path)


def test_no_registry_host_is_named() -> None:
    hosts = re.compile(r"https?://[^\s\"')]*(pypi|npmjs|pythonhosted|debian\.org)", re.IGNORECASE)
    texts = [p for pattern in ("*.py", "*.md", "*.toml", "Makefile") for p in ROOT.glob(pattern)]
    texts += [p for folder in ("docs", "bench", ".ci", *PACKAGES) for p in (ROOT / folder).rglob("*") if p.is_file()]
    for path in texts:
        if path.suffix in {".js", ".css", ".pyc", ".map", ".png"}:
            continue
        assert not hosts.search(path.read_text(errors="replace")), relative(path)

"""The documentation's examples run as they stand.

Blocks tagged ``sh`` and ``python`` run in order, one session and one service on one fresh data directory a page, in an
empty directory; ``json`` blocks are parsed, and written to the file that they name (```` ```json program.json ````).
A ``text`` block directly below a ``sh`` or ``python`` block is its output: each line must come out, apart from figures,
ids, digests and candidates; with ``text exact`` those too. Other ``text`` and ``console`` blocks are not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tuner_service.cli.launch import PrivateService

pytestmark = pytest.mark.toolchain

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "bench" / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = ("sh", "python", "json")
NOT_RUN = ("text", "console", "toml", "")
ELSEWHERE = {
    "docs/reference/catalog-format.md": "shows stored documents; tests/unit/catalogs hold them to the code",
    "docs/reference/evidence.md": "shows stored documents; the audit's tests hold them to the code",
}
"""Pages whose blocks are excerpts with gaps, and what checks them instead."""
PAGE_TIMEOUT_SECONDS = 600
"""A page that hangs ends here; no example is judged by its time."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, the rest of its info string, its text, and the line it begins on."""

    language: str
    name: str
    text: str
    line: int
    follows: bool = False
    """Whether nothing stands between it and the block before it."""


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    at, closed = 0, -2
    while at < len(lines):
        if lines[at].startswith("```"):
            language, _, name = lines[at].removeprefix("```").partition(" ")
            end = next(n for n in range(at + 1, len(lines)) if lines[n].rstrip() == "```")
            text = "\n".join(lines[at + 1 : end]) + "\n"
            found.append(Block(language=language, name=name, text=text, line=at + 1, follows=at == closed + 1))
            at = closed = end
        at += 1
    return found


def where(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def replays(page: Path) -> bool:
    """Whether an example of the page accepts a catalog."""
    return any("catalog accept" in block.text for block in blocks(page) if block.language in RUN)


RUNNABLE = [
    pytest.param(page, id=where(page), marks=[pytest.mark.alone] if replays(page) else [])
    for page in PAGES
    if where(page) not in ELSEWHERE and any(block.language in RUN for block in blocks(page))
]


def test_pages_that_are_left_out_exist() -> None:
    assert set(ELSEWHERE) <= {where(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_every_block_says_whether_it_runs(page: Path) -> None:
    if where(page) in ELSEWHERE:
        return
    for block in blocks(page):
        assert block.language in (*RUN, *NOT_RUN), f"{where(page)}:{block.line}: {block.language!r}"
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)


LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#([^)]*))?\)")


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_every_link_inside_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        there = (page.parent / target).resolve()
        assert there.exists(), f"{where(page)} links to {target}"
        if anchor and there.suffix == ".md":
            assert anchor in _anchors(there), f"{where(page)} links to {target}#{anchor}"


@pytest.fixture
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of a page's session: our commands, a fresh data directory, and a service unless it starts one."""
    page: Path = request.getfixturevalue("page")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "TUNER_DATA_DIR": str(tmp_path / "data"),
        "TUNER_LOCK_DIR": os.environ["TUNER_LOCK_DIR"],
        "REPOSITORY": str(ROOT),
    }
    if any("TUNER_DATABASE_URL" in block.text for block in blocks(page) if block.language == "sh"):
        environment["TUNER_DATABASE_URL"] = request.getfixturevalue("postgres_url")
    if "$POSTGRES_URL" in page.read_text():
        yield environment | {"POSTGRES_URL": str(request.getfixturevalue("empty_postgres_url"))}
        return
    if "tuner" not in page.read_text() or re.search(r"^tuner serve", page.read_text(), re.MULTILINE):
        yield environment
        return
    with PrivateService(tmp_path / "data") as service:
        yield environment | {"TUNER_URL": service.url}


@pytest.mark.parametrize("page", RUNNABLE)
def test_a_page_runs_as_it_stands(page: Path, session: dict[str, str], tmp_path: Path) -> None:
    found = blocks(page)
    if any("curl " in block.text for block in found if block.language == "sh") and shutil.which("curl") is None:
        pytest.skip("curl is not installed, and the page's examples use it")
    folder = tmp_path / "work"
    folder.mkdir()
    script = ["set -eu"]
    for number, block in enumerate(found):
        script.append(f"echo '{_mark(number)}'")
        if block.language == "json" and block.name:
            (tmp_path / f"{number}.json").write_text(block.text)
            script.append(f"mkdir -p \"$(dirname '{block.name}')\"; cp '{tmp_path}/{number}.json' '{block.name}'")
        elif block.language == "python":
            (tmp_path / f"{number}.py").write_text(block.text)
            script.append(f"python '{tmp_path}/{number}.py'")
        elif block.language == "sh":
            script.append(block.text)
    (tmp_path / "page.sh").write_text("\n".join(script))
    status, output = _run(tmp_path / "page.sh", folder, session)
    if status != 0 and refused_for_noise(output):
        pytest.skip("this machine is too busy for an acceptance, so the page's promotion was refused")
    assert status == 0, f"{where(page)} ended with {status}:\n{output}"
    printed = _printed(output)
    for number, block in enumerate(found):
        if block.language == "text" and block.follows and found[number - 1].language in ("sh", "python"):
            _assert_shown(block, printed[number - 1], page)


def refused_for_noise(output: str) -> bool:
    """Whether a promotion was refused because the replays before it found nothing but noise: a verdict, not a fault."""
    reasons = re.findall(r"^because (.*)$", output, re.MULTILINE)
    noise = all(": inconclusive, the same code timed twice differs" in reason for reason in reasons)
    return "has no accepted acceptance" in output and bool(reasons) and noise


def _run(script: Path, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output; whatever the script leaves running is ended with it."""
    with (folder.parent / "output.txt").open("w+") as output:
        running = subprocess.Popen(
            ["sh", str(script)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = running.wait(PAGE_TIMEOUT_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        output.seek(0)
        return status, output.read()


def _mark(number: int) -> str:
    return f"::: block {number} :::"


def _printed(output: str) -> dict[int, str]:
    """What each block printed, by its number."""
    parts = re.split(r"^::: block (\d+) :::\n", output, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


_CHANGES = (
    (re.compile(r"\b(job|trl)_[0-9a-z]{20,}"), r"\1_ID"),
    (re.compile(r"\bcpu:[0-9a-f]{12}"), "DEVICE"),
    (re.compile(r"\b[0-9a-f]{10,64}…?"), "DIGEST"),
    (re.compile(r"\bW\d+ (reload|cache)( fused)? \w+( (V|U|P|L|R|rows×)\d+)*( simd:\w+)?( nt)?"), "CANDIDATE"),
    (re.compile(r"(http://127\.0\.0\.1):\d+"), r"\1:PORT"),
    (re.compile(r" on [A-Z][\w()@. -]*$"), " on MACHINE"),
    (re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?( (ns|µs|ms|s)\b| %)?|–"), "N"),
    (re.compile(r"\s+"), " "),
)


def _words(line: str) -> str:
    return " ".join(line.split())


def _shape(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, word in _CHANGES:
        line = pattern.sub(word, line)
    return line.strip()


def _assert_shown(block: Block, output: str, page: Path) -> None:
    """Each documented line but ``…`` is among the printed ones, whatever figures, ids and candidates stand in it."""
    alike = _words if block.name == "exact" else _shape
    shown = {alike(line) for line in output.splitlines()}
    for line in block.text.splitlines():
        if line.strip() not in ("", "…"):
            assert alike(line) in shown, f"{where(page)}:{block.line} shows\n{line}\nbut this came out:\n{output}"


def _said(text: str, name: str = "") -> Block:
    return Block(language="text", name=name, text=text, line=1)


def test_documented_output_may_differ_in_figures_and_ids_only() -> None:
    came = "softmax 8×33   8  1  7  W16 reload private simd:none  353 ns  0.24 [0.21, 0.33]\nmiss: no winner\n"
    _assert_shown(
        _said("softmax 8×33  9  2  7  W32 cache output simd:all nt  1.5 µs  1.24 [1, 2]\n…\n"), came, PAGES[0]
    )
    with pytest.raises(AssertionError):
        _assert_shown(_said("miss: no winners\n"), came, PAGES[0])
    with pytest.raises(AssertionError):
        _assert_shown(_said("rms_norm 8×33  9  2  7  W32 cache output simd:all  1.5 µs  1 [1, 2]\n"), came, PAGES[0])


def test_exact_output_differs_in_nothing_but_spaces() -> None:
    _assert_shown(_said("a 4 {'b': 1}\n", "exact"), "a   4 {'b': 1}  \n", PAGES[0])
    with pytest.raises(AssertionError):
        _assert_shown(_said("a 5\n", "exact"), "a 4\n", PAGES[0])


def test_only_noise_excuses_a_page() -> None:
    noise = "because softmax 16×64: inconclusive, the same code timed twice differs by 31.0%, above 15%\n"
    refused = "error: catalog 12ab has no accepted acceptance; ask for one\n"
    assert refused_for_noise(noise + noise + refused)
    assert not refused_for_noise(refused)
    assert not refused_for_noise(noise)
    assert not refused_for_noise(noise + "because softmax 16×64: worse, the default takes 0.5\n" + refused)


def test_blocks_are_found_with_their_tags(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho 1\n```\n```text exact\n1\n```\nwords\n```json a.json\n{}\n```\n")
    found = [(b.language, b.name, b.text, b.line, b.follows) for b in blocks(page)]
    assert found == [
        ("sh", "", "echo 1\n", 1, False),
        ("text", "exact", "1\n", 4, True),
        ("json", "a.json", "{}\n", 8, False),
    ]


def test_each_block_gets_its_own_output(tmp_path: Path) -> None:
    script = tmp_path / "page.sh"
    script.write_text(f"echo '{_mark(0)}'\necho one\necho '{_mark(1)}'\necho two >&2\nexit 3\n")
    status, output = _run(script, tmp_path, dict(os.environ))
    assert status == 3
    assert _printed(output) == {0: "one\n", 1: "two\n"}

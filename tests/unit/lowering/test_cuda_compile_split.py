"""A batch that fails is split until the guilty stand alone. The compiler is a fake: it fails where it is told to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from search.errors import ToolchainUnavailable
from search.lowering.cuda import compile as compiling
from search.lowering.cuda.compile import Member, compile_members
from search.lowering.cuda.compiler import Compiled, CompileError

TEXT = '#include <tl_templates/cuda/reduce.h>\nextern "C" __global__ void {symbol}() {{}}\n'


def members(count: int) -> list[Member]:
    return [Member(symbol=f"k_{at}", cuda_text=TEXT.format(symbol=f"k_{at}")) for at in range(count)]


@dataclass
class Compiler:
    """Fails for any text with a guilty kernel in it; remembers which kernels each call had."""

    guilty: dict[str, str] = field(default_factory=dict)
    """Symbol → reason."""
    words: Callable[[str], str] = lambda symbol: ""
    most: int = 1000
    """With more kernels than this a call runs out of time."""
    calls: list[list[str]] = field(default_factory=list)
    name: Literal["nvcc", "nvrtc"] = "nvcc"

    def compile(self, cuda_text: str, *, architecture: str, timeout_seconds: float, **_: object) -> Compiled:
        symbols = re.findall(r"void (k_\d+)\(", cuda_text)
        self.calls.append(symbols)
        if len(symbols) > self.most:
            raise CompileError("compile_timeout", {"limit_seconds": timeout_seconds})
        for symbol in symbols:
            if symbol in self.guilty:
                raise CompileError(self.guilty[symbol], {"compiler_output": f"about {symbol}"}, self.words(symbol))
        return Compiled(cubin=" ".join(symbols).encode(), report="")

    def architectures(self, **_: object) -> tuple[str, ...]:
        return ("sm_90",)

    def version(self, **_: object) -> tuple[int, int]:
        return (13, 0)

    def describe(self, sha256: Callable[[str], str], **_: object) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def facts_of_no_cubin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "read_facts", lambda compiled, symbols: dict.fromkeys(symbols))


def build(compiler: Compiler, count: int = 16):
    progress: list[None] = []
    built, rejections = compile_members(
        members(count),
        architecture="sm_90",
        compiler=compiler,
        timeout_seconds=7.0,
        progress=lambda: progress.append(None),
    )
    assert len(progress) == len(compiler.calls)
    good = [member.symbol for _, inside in built for member in inside]
    for cubin, inside in built:
        assert set(cubin.facts) == {member.symbol for member in inside}
    assert sorted([*good, *rejections]) == sorted(member.symbol for member in members(count))
    return good, rejections


def test_a_good_batch_is_one_call() -> None:
    compiler = Compiler()
    good, rejections = build(compiler)
    assert (len(good), rejections, len(compiler.calls)) == (16, {}, 1)


def test_whom_nobody_names_is_found_by_halving() -> None:
    compiler = Compiler(guilty={"k_5": "compiler_error", "k_11": "compiler_error"})
    _, rejections = build(compiler)
    assert set(rejections) == {"k_5", "k_11"}
    assert rejections["k_5"].document() == {
        "stage": "compile",
        "reason": "compiler_error",
        "detail": {"compiler_output": "about k_5"},
    }
    assert len(compiler.calls) <= 15


def test_whom_the_compiler_names_is_tried_alone_and_the_others_stay_together() -> None:
    compiler = Compiler(
        guilty={"k_5": "compiler_error"}, words=lambda symbol: f"{symbol}.cu(3): error: identifier is undefined"
    )
    _, rejections = build(compiler)
    assert set(rejections) == {"k_5"}
    assert [len(call) for call in compiler.calls] == [16, 15, 1]


def test_a_slow_kernel_that_nobody_names_waits_once_more_only() -> None:
    compiler = Compiler(guilty={"k_3": "compile_timeout"})
    _, rejections = build(compiler)
    assert set(rejections) == {"k_3"}
    assert sum("k_3" in call for call in compiler.calls) == 2


def test_a_batch_that_is_only_too_big_rejects_nobody() -> None:
    assert build(Compiler(most=4))[1] == {}


def test_a_crash_is_the_crashing_members() -> None:
    _, rejections = build(Compiler(guilty={"k_0": "compiler_crashed"}), count=3)
    assert {symbol: one.reason for symbol, one in rejections.items()} == {"k_0": "compiler_crashed"}


def test_static_shared_memory_that_does_not_fit_is_a_resource() -> None:
    words = "ptxas error   : Entry function '{}' uses too much shared data (0x10000 bytes, 0xc000 max)"
    _, rejections = build(Compiler(guilty={"k_1": "compiler_error"}, words=words.format), count=2)
    rejection = rejections["k_1"]
    assert (rejection.stage, rejection.reason) == ("resources", "shared_memory")
    assert rejection.detail["static_shared_bytes"] == 65536
    assert rejection.detail["limit_bytes"] == 49152


def test_a_compiler_that_does_not_start_blames_nobody() -> None:
    with pytest.raises(ToolchainUnavailable, match="about k_0"):
        build(Compiler(guilty={"k_0": "compiler_not_started"}))


def test_a_cubin_that_cannot_be_read_is_split_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(compiled: Compiled, symbols: list[str]) -> dict[str, None]:
        if "k_2" in symbols:
            raise ValueError("the compiler's output has no kernel k_2")
        return dict.fromkeys(symbols)

    monkeypatch.setattr(compiling, "read_facts", unreadable)
    _, rejections = build(Compiler(), count=4)
    assert {symbol: one.reason for symbol, one in rejections.items()} == {"k_2": "unreadable_cubin"}


@dataclass
class Verdicts:
    """What is answered, in turn, to whoever asks whether the compiler is broken; counts the questions."""

    answers: list[str | None]
    asked: int = 0

    def __call__(self) -> str | None:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def tried(compiler: Compiler, verdicts: Verdicts, count: int = 16) -> dict[str, Any]:
    return compile_members(
        members(count), architecture="sm_90", compiler=compiler, timeout_seconds=7.0, broken=verdicts
    )[1]


@pytest.mark.parametrize("reason", ["compile_timeout", "compiler_error", "compiler_crashed", "unreadable_cubin"])
def test_a_compiler_that_breaks_blames_nobody(reason: str) -> None:
    compiler = Compiler(guilty={f"k_{at}": reason for at in range(16)})
    with pytest.raises(ToolchainUnavailable, match="no kernel compiles"):
        tried(compiler, Verdicts(["no kernel compiles"]))
    assert sum(len(call) == 1 for call in compiler.calls) == 1, "the others do not wait for it one by one"


def test_a_compiler_that_breaks_after_the_first_member_failed_blames_nobody() -> None:
    with pytest.raises(ToolchainUnavailable, match="broken by now"):
        tried(Compiler(guilty={"k_3": "compiler_error", "k_9": "compiler_error"}), Verdicts([None, "broken by now"]))


def test_a_compiler_that_works_is_asked_twice_at_most_and_the_members_are_to_blame() -> None:
    verdicts = Verdicts([None])
    rejections = tried(Compiler(guilty={f"k_{at}": "compiler_error" for at in range(9)}), verdicts)
    assert (len(rejections), verdicts.asked) == (9, 2)


def test_a_kernel_that_takes_too_much_shared_memory_casts_no_doubt_on_the_compiler() -> None:
    words = "ptxas error   : Entry function '{}' uses too much shared data (0x10000 bytes, 0xc000 max)"
    verdicts = Verdicts(["never asked"])
    rejections = tried(Compiler(guilty={"k_1": "compiler_error"}, words=words.format), verdicts)
    assert (rejections["k_1"].stage, verdicts.asked) == ("resources", 0)

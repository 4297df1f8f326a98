"""Facts of compiled functions: equal code has equal hashes wherever a batch put it, different code has not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from search.lowering.cpu.compile import CompileError, Member, compile_library, compile_members
from search.lowering.cpu.dialect import Kernel
from search.lowering.cpu.facts import FunctionFacts
from search.lowering.cpu.toolchain import compiler
from search.lowering.elf import ObjectFile

pytestmark = pytest.mark.toolchain
SCALE = "for (int32_t i = 0; i < 64; ++i) y[i] = x[i] * {a}f;"
BODIES = {
    "scale": SCALE.format(a="3.0"),
    "scale again": SCALE.format(a="3.0"),
    "scale less": SCALE.format(a="2.5"),
    "exp": "for (int32_t i = 0; i < n; ++i) y[i] = tuner_exp(x[i]);",
    "shuffle": "for (int32_t i = 0; i < 16; ++i) y[i] = x[(i * 7) & 15];",
    "compare": "for (int32_t i = 0; i < 64; ++i) y[i] = x[i] < 1.5f ? 2.5f : x[i];",
    "stack": "float t[4096]; for (int32_t i = 0; i < n; ++i) t[(i * 77) & 4095] = x[i];"
    " for (int32_t i = 0; i < n; ++i) y[i] = t[(i * 31) & 4095];",
    "scalar": "y[0] = x[0];",
    "call": "y[0] = (float)cbrt(x[0]);",
}


def member(name: str, symbol: str, body: str | None = None) -> Member:
    head = "int32_t kernel(float* __restrict__ x, float* __restrict__ y, int32_t n)"
    text = f"{head} {{\n  {body or BODIES[name]}\n  return 0;\n}}\n"
    return Member(symbol=symbol, kernel=Kernel(c_text=text, arguments=()))


def facts_of(symbols: Mapping[str, str]) -> dict[str, FunctionFacts]:
    """Name → symbol, compiled in that order as one batch; facts by name."""
    members = [member(name, symbol) for name, symbol in symbols.items()]
    library = compile_library(members, timeout_seconds=60, cc=compiler())
    return {name: library.facts[symbol] for name, symbol in symbols.items()}


@pytest.fixture(scope="module")
def together() -> dict[str, FunctionFacts]:
    return facts_of({name: f"k_{number}" for number, name in enumerate(BODIES)})


def test_a_hash_depends_on_neither_batch_nor_symbol_nor_order(together: dict[str, FunctionFacts]) -> None:
    backwards = facts_of({name: f"another_{number}" for number, name in reversed(list(enumerate(BODIES)))})
    assert backwards == together
    for name in BODIES:
        assert facts_of({name: "k_alone"})[name] == together[name]


def test_equal_functions_have_equal_hashes_and_others_have_not(together: dict[str, FunctionFacts]) -> None:
    hashes = {name: facts.artifact_sha256 for name, facts in together.items()}
    assert hashes["scale"] == hashes["scale again"]
    assert len(set(hashes.values())) == len(BODIES) - 1


def test_a_constant_is_part_of_the_code(together: dict[str, FunctionFacts]) -> None:
    """Same instructions, another constant in .rodata: not the same kernel."""
    one, other = together["scale"], together["scale less"]
    assert one.static_instructions == other.static_instructions
    assert one.code_bytes == other.code_bytes
    assert one.artifact_sha256 != other.artifact_sha256


def test_counts(together: dict[str, FunctionFacts]) -> None:
    assert together["scalar"].static_branches == 0
    assert together["scalar"].widest_vector_bits == 0
    assert together["scalar"].stack_bytes <= 16
    assert 2 <= together["scalar"].static_instructions <= 8
    assert together["exp"].static_branches >= 1
    assert together["exp"].widest_vector_bits >= 128
    assert together["stack"].stack_bytes >= 4000 * 4
    assert all(facts.code_bytes > 0 for facts in together.values())


def test_a_bad_member_is_found_and_the_others_are_built() -> None:
    members = [member("scale", "k_good"), member("", "k_bad", "this is not C;"), member("exp", "k_fine")]
    built, rejections = compile_members(members, timeout_seconds=60, cc=compiler())
    assert {one.symbol for _, inside in built for one in inside} == {"k_good", "k_fine"}
    assert set(rejections) == {"k_bad"}
    rejection = rejections["k_bad"]
    assert (rejection.stage, rejection.reason) == ("compile", "compiler_error")
    assert "error" in rejection.detail["compiler_output"]


def test_a_compiler_that_takes_too_long_is_stopped(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(CompileError) as caught:
        compile_library([member("scale", "k_1")], timeout_seconds=0.2, cc=str(slow))
    assert caught.value.reason == "compile_timeout"


def test_a_full_disk_is_nobodys_fault(tmp_path) -> None:
    full = tmp_path / "cc"
    full.write_text("#!/bin/sh\necho 'batch.o: No space left on device' >&2\nexit 1\n")
    full.chmod(0o755)
    with pytest.raises(OSError, match="No space left"):
        compile_members([member("scale", "k_1"), member("exp", "k_2")], timeout_seconds=20, cc=str(full))


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x01\x01" + b"\0" * 60, b"not an object at all, by far"])
def test_what_is_no_object_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="ELF64"):
        ObjectFile(data)

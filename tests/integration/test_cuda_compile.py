"""Real compilers on real kernels, no GPU: facts, hashes that know neither batch nor name, members that fail alone."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from search.lowering.cuda import toolchain
from search.lowering.cuda.compile import Member, compile_members
from search.lowering.cuda.compiler import CompileError, CudaCompiler
from search.lowering.cuda.facts import KernelFacts
from search.lowering.cuda.nvrtc import Nvrtc

pytestmark = pytest.mark.toolchain
FIXTURES = Path(__file__).parent / "cuda_kernels"
REDUCE = "#include <tl_templates/cuda/reduce.h>\n"
HEAD = 'extern "C" __global__ void __launch_bounds__({threads}) main_kernel(const float* x, float* y)'
WRITTEN = {
    "plain": HEAD.format(threads=128) + "{ y[threadIdx.x] = x[threadIdx.x] * 3.0f; }",
    "plain twin": HEAD.format(threads=128) + "{ const float v = 3.0f * x[threadIdx.x]; y[threadIdx.x] = v; }",
    "other constant": HEAD.format(threads=128) + "{ y[threadIdx.x] = x[threadIdx.x] * 2.5f; }",
    "warp": HEAD.format(threads=32) + "{ y[threadIdx.x] = tl::AllReduce<tl::SumOp, 32, 1>::run(x[threadIdx.x]); }",
    "spilling": HEAD.format(threads=1024)
    + "{ float t[96]; for (int i = 0; i < 96; ++i) t[i] = x[i * 1024 + threadIdx.x]; __syncthreads();"
    " float s = 0; for (int i = 0; i < 96; ++i) { s += t[i] * t[95 - i]; y[i * 1024 + threadIdx.x] = t[i] + s; } }",
    "double": HEAD.format(threads=32) + "{ y[threadIdx.x] = (float)(1.0 / (double)x[threadIdx.x]); }",
}


def text(name: str) -> str:
    return REDUCE + WRITTEN[name] if name in WRITTEN else (FIXTURES / f"{name}.cu").read_text()


def member(name: str, symbol: str) -> Member:
    return Member(symbol=symbol, cuda_text=re.sub(r"\bmain_kernel\b", symbol, text(name)))


NAMES = [*WRITTEN, *sorted(path.stem for path in FIXTURES.glob("*.cu"))]


@pytest.fixture(scope="module", params=["nvcc", "nvrtc"])
def compiler(request: pytest.FixtureRequest) -> Iterator[CudaCompiler]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "nvrtc":
            patch.setenv("TUNER_NVCC", "none")
        found = toolchain.cuda_compiler()
    if found.name != request.param:
        pytest.skip("no nvcc on this machine")
    yield found
    found.close()


def build(compiler: CudaCompiler, symbols: dict[str, str]) -> dict[str, KernelFacts]:
    """Name → symbol, compiled in that order as one batch; facts by name."""
    members = [member(name, symbol) for name, symbol in symbols.items()]
    built, rejections = compile_members(members, architecture="sm_90", compiler=compiler, timeout_seconds=120)
    assert rejections == {}
    ((cubin, inside),) = built
    assert {one.symbol for one in inside} == set(symbols.values())
    return {name: cubin.facts[symbol] for name, symbol in symbols.items()}


@pytest.fixture(scope="module")
def together(compiler: CudaCompiler) -> dict[str, KernelFacts]:
    return build(compiler, {name: f"k_{at}" for at, name in enumerate(NAMES)})


def test_a_hash_knows_neither_batch_nor_symbol_nor_order(
    compiler: CudaCompiler, together: dict[str, KernelFacts]
) -> None:
    backwards = [name for name in reversed(NAMES) if name not in ("plain", "spilling")]
    assert build(compiler, {name: f"another_name_{at}" for at, name in enumerate(backwards)}) == {
        name: together[name] for name in backwards
    }


def test_equal_kernels_have_equal_hashes_and_others_have_not(together: dict[str, KernelFacts]) -> None:
    hashes = {name: facts.artifact_sha256 for name, facts in together.items()}
    assert hashes["plain"] == hashes["plain twin"]
    assert len(set(hashes.values())) == len(NAMES) - 1


def test_facts(together: dict[str, KernelFacts]) -> None:
    kinds = {name: facts.counts.collective for name, facts in together.items()}
    assert kinds["plain"] == "none"
    assert kinds["warp"] == "warp_shuffle"
    assert kinds["softmax_reload"] == kinds["rms_norm_cache"] == "shared_memory"
    plain = together["plain"]
    assert plain.counts.memory == {"LDG": {"32": 1}, "STG": {"32": 1}}
    assert plain.counts.static_branches == 0
    assert 6 <= plain.counts.static_instructions <= 24
    assert together["warp"].counts.shuffles == 5
    assert together["rms_norm_cache"].counts.memory["LDG"] == {"128": 4}  # x: 2 chunks, weight: 2
    assert set(together["rms_norm_cache"].counts.memory["STG"]) == {"128"}
    assert together["double"].counts.static_branches >= 1
    for facts in together.values():
        assert 8 <= facts.resources.registers <= 255
        assert facts.code_bytes >= 16 * facts.counts.static_instructions
        assert facts.constant_bytes > 0


def test_a_table_of_the_module_is_part_of_the_code_that_reads_it(compiler: CudaCompiler) -> None:
    if compiler.name != "nvrtc":
        pytest.skip("once is enough: the cubin is read in the same way")
    table = "__constant__ float table[4] = {{1, 2, 3, {last}}};\n"
    body = HEAD.format(threads=32) + "{ y[threadIdx.x] = table[(int)x[threadIdx.x] & 3]; }"
    members = [
        Member(symbol=f"k_{last}", cuda_text=table.format(last=last) + body.replace("main_kernel", f"k_{last}"))
        for last in (4, 5)
    ]
    built, _ = compile_members(members, architecture="sm_90", compiler=compiler, timeout_seconds=120)
    assert len(built) == 2  # definitions that differ share no text
    four, five = (cubin.facts[inside[0].symbol] for cubin, inside in built)
    assert four.code_bytes == five.code_bytes
    assert four.artifact_sha256 != five.artifact_sha256


def test_spills_are_seen_in_report_and_code(together: dict[str, KernelFacts]) -> None:
    spilling = together["spilling"]
    assert spilling.resources.registers == 64
    assert spilling.resources.spill_store_bytes > 0
    assert spilling.resources.spill_load_bytes > 0
    assert spilling.resources.stack_bytes > 0
    assert {"LDL", "STL"} <= set(spilling.counts.memory)
    assert together["plain"].resources.spill_store_bytes == 0


def test_bad_members_stand_alone_with_the_compilers_words(
    compiler: CudaCompiler, together: dict[str, KernelFacts]
) -> None:
    texts = {
        "k_good": text("plain"),
        "k_bad": REDUCE + HEAD.format(threads=32) + "{ y[0] = nothing_of_that_name(x); }",
        "k_shared": REDUCE
        + HEAD.format(threads=32)
        + "{ __shared__ float s[16384]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[0] = s[x[0] > 0]; }",
    }
    if compiler.name == "nvcc":  # a call takes seconds, and both have the same ptxas
        del texts["k_shared"]
    members = [Member(symbol=symbol, cuda_text=text.replace("main_kernel", symbol)) for symbol, text in texts.items()]
    built, rejections = compile_members(members, architecture="sm_90", compiler=compiler, timeout_seconds=120)
    assert [[one.symbol for one in inside] for _, inside in built] == [["k_good"]]
    assert (rejections["k_bad"].stage, rejections["k_bad"].reason) == ("compile", "compiler_error")
    assert "nothing_of_that_name" in rejections["k_bad"].detail["compiler_output"]
    assert built[0][0].facts["k_good"] == together["plain"]  # alone it is what it is in a batch
    if "k_shared" not in texts:
        return
    assert (rejections["k_shared"].stage, rejections["k_shared"].reason) == ("resources", "shared_memory")
    assert rejections["k_shared"].detail["static_shared_bytes"] == 65536


def test_a_call_that_takes_too_long_is_stopped_and_the_next_one_works(compiler: CudaCompiler) -> None:
    members = [member("spilling", "k_slow")]
    built, rejections = compile_members(members, architecture="sm_90", compiler=compiler, timeout_seconds=0.05)
    assert built == []
    assert rejections["k_slow"].document() == {
        "stage": "compile",
        "reason": "compile_timeout",
        "detail": {"limit_seconds": 0.05},
    }
    compiled = compiler.compile("__global__ void empty() {}", architecture="sm_80", timeout_seconds=120)
    assert compiled.cubin[:4] == b"\x7fELF"


def test_what_no_compiler_knows_is_refused(compiler: CudaCompiler) -> None:
    assert {"sm_80", "sm_90", "sm_100"} <= set(compiler.architectures())
    with pytest.raises(CompileError, match="compiler_error"):
        compiler.compile("__global__ void empty() {}", architecture="sm_42", timeout_seconds=120)


def test_the_fingerprint_names_every_part(compiler: CudaCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler.name == "nvrtc":
        monkeypatch.setenv("TUNER_NVCC", "none")
    described = toolchain.fingerprint("sm_90")
    assert described["compiler"]["name"] == compiler.name
    assert described["compiler"]["version"].startswith("13.")
    expected = {"nvcc": {"nvcc", "cicc", "ptxas", "libdevice"}, "nvrtc": {"libnvrtc.so.13"}}[compiler.name]
    assert expected <= set(described["compiler"]["sha256"])
    assert all(len(digest) == 64 for digest in described["compiler"]["sha256"].values())
    assert described["architecture"] == "sm_90"
    assert described == toolchain.fingerprint("sm_90")
    assert toolchain.check("sm_90") is None


def test_nvrtc_leaves_nothing_behind_not_even_what_a_killed_process_left(
    compiler: CudaCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler.name != "nvrtc":
        pytest.skip("nvcc's files go with each call")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / "tuner-nvrtc-99999999-x"
    abandoned.mkdir()
    another = Nvrtc()
    another.compile("__global__ void empty() {}", architecture="sm_90", timeout_seconds=120)
    assert not abandoned.exists()
    assert list(tmp_path.iterdir()) != []
    another.close()
    assert list(tmp_path.iterdir()) == []

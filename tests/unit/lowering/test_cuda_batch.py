"""Texts that share a compiler call, and whom the compiler's words blame."""

from __future__ import annotations

from search.lowering.cuda.batch import Member, batch_text, groups, named_in

REDUCE = "#include <tl_templates/cuda/reduce.h>\n"
COMMON = "#include <tl_templates/cuda/common.h>\n"
OPERATION = "struct MulOp { float f; };\n"


def member(symbol: str, includes: str = REDUCE, prelude: str = "") -> Member:
    return Member(symbol=symbol, cuda_text=f'{includes}{prelude}\nextern "C" __global__ void {symbol}() {{}}\n')


def test_includes_are_joined_and_what_is_shared_is_written_once() -> None:
    members = [member("k_a", prelude=OPERATION), member("k_b", COMMON + REDUCE, OPERATION), member("k_c")]
    (group,) = groups(members)
    assert {one.symbol for one in group} == {"k_a", "k_b", "k_c"}
    text = batch_text(group)
    for once in (REDUCE.strip(), COMMON.strip(), OPERATION.strip(), "void k_a()", "void k_b()", "void k_c()"):
        assert text.count(once) == 1, once
    assert text.index(COMMON.strip()) < text.index(OPERATION.strip()) < text.index('#line 1 "k_a.cu"')


def test_conditional_includes_stay_conditional() -> None:
    conditional = "#ifdef ENABLE_BF16\n#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>\n#endif\n"
    definition = "#ifndef TUNER_OPS\n#define TUNER_OPS\nstruct Op {};\n#endif\n"
    members = [member("k_a", REDUCE + conditional, definition), member("k_b", conditional + COMMON)]
    ((*group,),) = groups(members)
    text = batch_text(group)
    assert text.count(conditional.strip()) == text.count(definition.strip()) == 1
    assert text.count("cuda_bf16_fallbacks") == 1
    assert text.index(COMMON.strip()) < text.index("#define TUNER_OPS")


def test_definitions_that_differ_never_share_a_text() -> None:
    other = OPERATION.replace("float", "double")
    members = [member("k_a", prelude=OPERATION), member("k_b"), member("k_c", prelude=other)]
    found = [[one.symbol for one in group] for group in groups(members)]
    assert found == [["k_b", "k_a"], ["k_c"]]
    assert groups([]) == []


def test_the_compilers_words_name_the_culprit() -> None:
    members = [member("k_1"), member("k_12"), member("k_2")]
    front_end = (
        'k_12.cu(4): error: identifier "nope" is undefined\n\n1 error detected in the compilation of "batch.cu".'
    )
    assert [one.symbol for one in named_in(front_end, members)] == ["k_12"]
    ptxas = "ptxas error   : Entry function 'k_2' uses too much shared data (0x10000 bytes, 0xc000 max)"
    assert [one.symbol for one in named_in(ptxas, members)] == ["k_2"]
    assert named_in("k_1.cu(3): warning #177-D: declared but never referenced", members) == []
    assert named_in("fatal error: no such file", members) == []

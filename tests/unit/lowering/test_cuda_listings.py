"""What ptxas and nvdisasm print, recorded from CUDA 13.0 (nvdisasm 13.5), read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from search.lowering.cuda import nvdisasm
from search.lowering.cuda.ptxas import Resources, read_report, shared_overflow
from search.lowering.cuda.sass import Instruction, count, read_listing

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k_red' for 'sm_90'
ptxas info    : Function properties for k_red
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 512 bytes smem
ptxas info    : Compile time = 22.696 ms
ptxas info    : Compiling entry function 'k_spill' for 'sm_90'
ptxas info    : Function properties for k_spill
    184 bytes stack frame, 184 bytes spill stores, 316 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 184 bytes cumulative stack size
ptxas info    : Compile time = 31.230 ms
ptxas info    : Compiling entry function 'k_old' for 'sm_80'
ptxas info    : Function properties for k_old
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 368 bytes cmem[0]
"""
LISTING = """\
	.target	sm_90

	.elftype	@"ET_EXEC"


//--------------------- .text.k_red               --------------------------
	.section	.text.k_red,"ax",@progbits
	.align	128
        .global         k_red
        .type           k_red,@function
        .size           k_red,(.L_x_134 - k_red)
        .other          k_red,@"STO_CUDA_ENTRY STV_DEFAULT"
k_red:
.text.k_red:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R11, SR_TID.X ;
        /*0020*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0030*/                   ULDC.64 UR6, c[0x0][0x208] ;
        /*0040*/                   IMAD.WIDE.U32 R2, R11, 0x4, R2 ;
        /*0050*/                   LDG.E R2, desc[UR6][R2.64] ;
        /*0060*/                   S2UR UR5, SR_CgaCtaId ;
        /*0070*/                   UMOV UR4, 0x400 ;
        /*0080*/                   SHF.L.U32 R5, R11, 0x2, RZ ;
        /*0090*/                   LOP3.LUT R0, R5.reuse, 0x100, RZ, 0x3c, !PT ;
        /*00a0*/                   LOP3.LUT R6, R5, 0x80, RZ, 0x3c, !PT ;
        /*00b0*/                   ULEA UR4, UR5, UR4, 0x18 ;
        /*00c0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00d0*/                   STS [R5+UR4], R2 ;
        /*00e0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00f0*/                   LDS R7, [R0+UR4] ;
        /*0100*/                   FADD R4, R2, R7 ;
        /*0110*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0120*/                   STS [R5+UR4], R4 ;
        /*0130*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0140*/                   LDS R3, [R6+UR4] ;
        /*0150*/                   FADD R7, R4, R3 ;
.L_x_2:
        /*0160*/                   SHFL.BFLY PT, R8, R7, 0x10, 0x1f ;
        /*0170*/                   FADD R8, R7, R8 ;
.L_x_3:
        /*0180*/                   SHFL.BFLY PT, R3, R8, 0x8, 0x1f ;
        /*0190*/                   FADD R0, R8, R3 ;
.L_x_4:
        /*01a0*/                   SHFL.BFLY PT, R3, R0, 0x4, 0x1f ;
        /*01b0*/                   FADD R9, R0, R3 ;
.L_x_5:
        /*01c0*/                   SHFL.BFLY PT, R2, R9, 0x2, 0x1f ;
        /*01d0*/                   FADD R4, R9, R2 ;
        /*01e0*/                   LDC.64 R2, c[0x0][0x218] ;
.L_x_6:
        /*01f0*/                   SHFL.BFLY PT, R5, R4, 0x1, 0x1f ;
        /*0200*/                   IMAD.WIDE.U32 R2, R11, 0x4, R2 ;
        /*0210*/                   FADD R5, R4, R5 ;
        /*0220*/                   STG.E desc[UR6][R2.64], R5 ;
.L_x_7:
        /*0230*/                   EXIT ;
.L_x_0:
        /*0240*/                   BRA `(.L_x_0);
        /*0250*/                   NOP;
        /*0260*/                   NOP;
        /*0270*/                   NOP;
        /*0280*/                   NOP;
        /*0290*/                   NOP;
        /*02a0*/                   NOP;
        /*02b0*/                   NOP;
        /*02c0*/                   NOP;
        /*02d0*/                   NOP;
        /*02e0*/                   NOP;
        /*02f0*/                   NOP;
.L_x_134:


//--------------------- .nv.shared.k_red          --------------------------
	.section	.nv.shared.k_red,"aw",@nobits
	.sectionflags	@""
	.align	16
"""


def resources(**fields: int) -> Resources:
    names = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "static_shared_bytes", "barriers")
    return Resources(**(dict.fromkeys(names, 0) | fields))


def test_the_report() -> None:
    assert read_report(REPORT) == {
        "k_red": resources(registers=14, static_shared_bytes=512, barriers=1),
        "k_spill": resources(registers=64, stack_bytes=184, spill_store_bytes=184, spill_load_bytes=316, barriers=1),
        "k_old": resources(registers=10),
    }


def test_a_report_that_stops_in_a_kernel_says_nothing_of_it() -> None:
    assert set(read_report(REPORT[: REPORT.index("Used 64")])) == {"k_red"}
    assert read_report("") == {}


def test_static_shared_memory_that_does_not_fit() -> None:
    words = "ptxas error   : Entry function 'k' uses too much shared data (0x10000 bytes, 0xc000 max)"
    assert shared_overflow(words) == (65536, 49152)
    assert shared_overflow(REPORT) is None


def test_the_listing() -> None:
    (symbol,) = read_listing(LISTING)
    instructions = read_listing(LISTING)[symbol]
    assert symbol == "k_red"
    assert instructions[0] == Instruction(
        opcode="LDC", predicate=None, operands="R1, c[0x0][0x28]", labels=(".text.k_red",)
    )
    assert instructions[-1].opcode == "EXIT"  # the jump to itself and the padding are no code
    counts = count(instructions)
    assert counts.static_instructions == 36
    assert counts.static_branches == 0
    assert counts.memory == {
        "LDG": {"32": 1},
        "LDS": {"32": 2},
        "STG": {"32": 1},
        "STS": {"32": 2},
    }
    assert (counts.barriers, counts.shuffles, counts.warp_reductions) == (4, 5, 0)
    assert counts.collective == "shared_memory"
    assert counts.widest_global_bits == 32


def one(line: str) -> Instruction:
    """The first instruction of a kernel whose code begins with this line."""
    text = f'\t.section\t.text.k,"ax",@progbits\n        /*0000*/ {line} ;\n        /*0010*/ EXIT ;\n'
    return read_listing(text)["k"][0]


@pytest.mark.parametrize(
    ("line", "name", "bits"),
    [
        ("LDG.E R2, desc[UR6][R2.64]", "LDG", 32),
        ("LDG.E.128.CONSTANT R4, desc[UR6][R2.64]", "LDG", 128),
        ("LDG.E.U16.CONSTANT R2, desc[UR4][R2.64]", "LDG", 16),
        ("@!P0 LDG.E.64 R12, desc[UR4][R2.64+0x100]", "LDG", 64),
        ("LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64]", "LDG", 256),
        ("STG.E.U8 desc[UR4][R2.64], R5", "STG", 8),
        ("LDS.128 R4, [R0+UR4]", "LDS", 128),
        ("STL.64 [R1+0x8], R2", "STL", 64),
    ],
)
def test_widths(line: str, name: str, bits: int) -> None:
    assert count((one(line),)).memory == {name: {str(bits): 1}}


@pytest.mark.parametrize(
    ("line", "conditional"),
    [
        ("@!P0 BRA `(.L_x_3)", True),
        ("@P3 BRA P1, `(.L_x_3)", True),
        ("BRA.U !UP0, `(.L_x_3)", True),
        ("@UP0 BRA.U `(.L_x_3)", True),
        ("BRA.DIV UR4, `(.L_x_9)", True),
        ("@P0 EXIT", True),
        ("BRA `(.L_x_3)", False),
        ("@!PT BRA `(.L_x_3)", False),
        ("EXIT", False),
        ("CALL.REL.NOINC `($k$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)", False),
        ("@P0 FADD R2, R2, R3", False),
    ],
)
def test_conditional_branches(line: str, conditional: bool) -> None:
    assert one(line).is_conditional_branch is conditional


def test_what_never_runs_is_no_access() -> None:
    counts = count((one("@!PT LDS RZ, [RZ]"),))
    assert (counts.memory, counts.static_instructions) == ({}, 1)
    assert counts.collective == "none"


def test_warp_reductions_are_a_collective() -> None:
    counts = count((one("REDUX.SUM UR6, R2"),))
    assert (counts.warp_reductions, counts.collective) == (1, "warp_shuffle")


def test_a_listing_that_takes_for_ever_is_that_cubins_doing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvdisasm"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    script.chmod(0o755)
    monkeypatch.setattr(nvdisasm, "nvdisasm", lambda: str(script))
    monkeypatch.setattr(nvdisasm, "LISTING_SECONDS", 0.2)
    with pytest.raises(ValueError, match="did not end within"):
        nvdisasm.disassemble(b"")

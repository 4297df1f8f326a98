"""Facts about the kernels of a cubin: what ptxas reported, what nvdisasm shows, and a hash of the machine code.

The hash is over what the machine executes, free of symbol name and batch: the function's bytes, its relocations with
its own name taken out, and its constants. A kernel that refers to data of the whole module (ours do not) has all of
them in its hash: where they lie depends on the batch, and equal code must never hide different data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from search.lowering.contract import CodeFacts
from search.lowering.cuda.architectures import SmLimits
from search.lowering.cuda.compiler import Compiled
from search.lowering.cuda.nvdisasm import disassemble
from search.lowering.cuda.occupancy import estimate_occupancy
from search.lowering.cuda.ptxas import Resources, read_report
from search.lowering.cuda.sass import Instruction, InstructionCounts, count, read_listing
from search.lowering.elf import ObjectFile

_MACHINE_CUDA = 190
_SELF = "@"
"""Stands for a kernel's own symbol."""
_MODULE_DATA = (".nv.constant3", ".nv.constant4", ".nv.global.init")
_MODULE_BANKS = ("c[0x3]", "c[0x4]")


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """What one kernel's machine code is."""

    artifact_sha256: str
    """Of the code alone: kernels with one hash may still be launched with different threads or dynamic shared bytes."""
    code_bytes: int
    constant_bytes: int
    """Of its constant banks, parameters included."""
    resources: Resources
    counts: InstructionCounts


def read_facts(compiled: Compiled, symbols: Iterable[str]) -> dict[str, KernelFacts]:
    """Facts of each kernel. Raises ValueError when one is missing, ToolchainUnavailable without nvdisasm."""
    parsed = ObjectFile(compiled.cubin)
    if parsed.machine != _MACHINE_CUDA:
        raise ValueError("the compiler's output is no cubin")
    report, listing = read_report(compiled.report), read_listing(disassemble(compiled.cubin))
    out = {}
    for symbol in symbols:
        code = next((section.data for section in parsed.sections if section.name == f".text.{symbol}"), None)
        if code is None or symbol not in report or symbol not in listing:
            raise ValueError(f"the compiler's output has no kernel {symbol}")
        constants = _constants(parsed, symbol)
        out[symbol] = KernelFacts(
            artifact_sha256=_code_sha256(parsed, symbol, constants, listing[symbol]),
            code_bytes=len(code),
            constant_bytes=sum(len(data) for data in constants.values()),
            resources=report[symbol],
            counts=count(listing[symbol]),
        )
    return out


def code_facts(
    facts: KernelFacts,
    *,
    source_sha256: str,
    tilelang_sha256: str,
    numerics: Mapping[str, str],
    limits: SmLimits,
    threads_per_block: int,
    dynamic_shared_bytes: int,
    planned_load_sites: int | None = None,
) -> CodeFacts:
    """The facts as a trial shows them, with the occupancy of the kernel as it is launched."""
    resources, counts = facts.resources, facts.counts
    shared_bytes = resources.static_shared_bytes + dynamic_shared_bytes
    occupancy = estimate_occupancy(
        limits,
        threads_per_block=threads_per_block,
        registers_per_thread=resources.registers,
        shared_bytes_per_block=shared_bytes,
        barriers_per_block=resources.barriers,
    )
    return CodeFacts(
        source_sha256=source_sha256,
        tilelang_sha256=tilelang_sha256,
        artifact_sha256=facts.artifact_sha256,
        static_instructions=counts.static_instructions,
        static_branches=counts.static_branches,
        stack_bytes=resources.stack_bytes,
        widest_vector_bits=counts.widest_global_bits,
        code_bytes=facts.code_bytes,
        registers=resources.registers,
        spill_bytes=resources.spill_store_bytes + resources.spill_load_bytes,
        shared_bytes=shared_bytes,
        numerics=numerics,
        spill_store_bytes=resources.spill_store_bytes,
        spill_load_bytes=resources.spill_load_bytes,
        static_shared_bytes=resources.static_shared_bytes,
        dynamic_shared_bytes=dynamic_shared_bytes,
        constant_bytes=facts.constant_bytes,
        threads_per_block=threads_per_block,
        memory_instructions=counts.memory,
        planned_load_sites=planned_load_sites,
        shuffle_instructions=counts.shuffles,
        warp_reduction_instructions=counts.warp_reductions,
        barrier_instructions=counts.barriers,
        collective=counts.collective,
        occupancy=occupancy.document(),
    )


def _constants(parsed: ObjectFile, symbol: str) -> dict[str, bytes]:
    """Bank (``.nv.constant0``) → bytes of a kernel's own constants."""
    ending = f".{symbol}"
    return {
        section.name.removesuffix(ending): section.data
        for section in parsed.sections
        if section.name.startswith(".nv.constant") and section.name.endswith(ending)
    }


def _code_sha256(
    parsed: ObjectFile, symbol: str, constants: Mapping[str, bytes], instructions: Iterable[Instruction]
) -> str:
    at = next(at for at, section in enumerate(parsed.sections) if section.name == f".text.{symbol}")
    relocations = parsed.relocations(at)
    form: list[Any] = [
        parsed.machine,
        parsed.sections[at].data.hex(),
        [[one.offset, one.kind, one.symbol.name.replace(symbol, _SELF), one.addend] for one in relocations],
        sorted((bank, data.hex()) for bank, data in constants.items()),
    ]
    targets = {parsed.sections[one.symbol.section].name for one in relocations if one.symbol.section is not None}
    reads_banks = any(bank in one.operands for one in instructions for bank in _MODULE_BANKS)
    if reads_banks or targets & set(_MODULE_DATA):
        form.append([[one.name, one.data.hex()] for one in parsed.sections if one.name in _MODULE_DATA])
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode()).hexdigest()

"""What a built kernel may not take: spills when they are forbidden, and more than a block may have."""

from __future__ import annotations

from search.lowering.contract import CodeFacts
from search.lowering.cuda.architectures import SmLimits
from search.lowering.cuda.facts import KernelFacts
from search.lowering.cuda.occupancy import registers_of_block
from search.outcome import Rejected

LAUNCH_LIMITS = "launch_limits"
"""Reason of a launch that takes more than a block may have, whether the compiler's figures say so or the driver."""


def resource_rejection(
    facts: KernelFacts,
    *,
    limits: SmLimits,
    threads_per_block: int,
    dynamic_shared_bytes: int,
) -> Rejected | None:
    """Why the kernel cannot be launched so on the architecture; None: it may run.

    Stage ``resources``; reasons ``launch_limits`` (threads), ``registers``, ``local_memory``, ``shared_memory``.
    """
    resources = facts.resources
    if threads_per_block > limits.threads_per_block:
        detail = {"threads_per_block": threads_per_block, "limit_threads": limits.threads_per_block}
        return Rejected(stage="resources", reason=LAUNCH_LIMITS, detail=detail)
    registers = registers_of_block(limits, threads_per_block, resources.registers)
    if resources.registers > limits.registers_per_thread or registers > limits.registers_per_block:
        detail = {
            "registers_per_thread": resources.registers,
            "limit_registers_per_thread": limits.registers_per_thread,
            "registers_per_block": registers,
            "limit_registers_per_block": limits.registers_per_block,
        }
        return Rejected(stage="resources", reason="registers", detail=detail)
    if resources.stack_bytes > limits.local_bytes_per_thread:
        detail = {"stack_bytes": resources.stack_bytes, "limit_bytes": limits.local_bytes_per_thread}
        return Rejected(stage="resources", reason="local_memory", detail=detail)
    shared_bytes = resources.static_shared_bytes + dynamic_shared_bytes
    if shared_bytes > limits.shared_bytes_per_block:
        detail = {
            "static_shared_bytes": resources.static_shared_bytes,
            "dynamic_shared_bytes": dynamic_shared_bytes,
            "limit_bytes": limits.shared_bytes_per_block,
        }
        return Rejected(stage="resources", reason="shared_memory", detail=detail)
    return None


def spill_rejection(facts: CodeFacts) -> Rejected | None:
    """Why code is rejected where spills are forbidden (``resources``, reason ``spills``); None: it spills none."""
    if not facts.spill_store_bytes and not facts.spill_load_bytes:
        return None
    detail = {
        "spill_store_bytes": facts.spill_store_bytes,
        "spill_load_bytes": facts.spill_load_bytes,
        "registers_per_thread": facts.registers,
    }
    return Rejected(stage="resources", reason="spills", detail=detail)

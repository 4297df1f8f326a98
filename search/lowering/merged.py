"""Did a reload stay a reload? Read from the machine code, beside that of the candidate that caches."""

from __future__ import annotations

from search.lowering.contract import CodeFacts

GLOBAL_LOAD = "LDG"


def reload_merged(reload: CodeFacts, cached: CodeFacts) -> bool | None:
    """Whether the compiler merged the loads of a reload candidate: its code reads global memory as seldom as its cached
    twin's does.

    It does if it is the same code, or has no more sites that load and no more branches (a rolled loop has few sites and
    runs them often). None where the facts count no loads: such code is not NVIDIA's.
    """
    if reload.memory_instructions is None or cached.memory_instructions is None:
        return None
    if reload.artifact_sha256 == cached.artifact_sha256:
        return True
    return _loads(reload) <= _loads(cached) and reload.static_branches <= cached.static_branches


def _loads(facts: CodeFacts) -> int:
    assert facts.memory_instructions is not None
    return sum(facts.memory_instructions.get(GLOBAL_LOAD, {}).values())

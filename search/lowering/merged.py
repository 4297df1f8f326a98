"""Did a reload stay a reload? Read from the machine code, beside that of the candidate that caches."""

from __future__ import annotations

from search.lowering.contract import CodeFacts

GLOBAL_LOAD = "LDG"


def reload_merged(reload: CodeFacts, cached: CodeFacts | None = None) -> bool | None:
    """Whether the compiler merged loads of a reload candidate, some or all: it reads what the text reads twice once.

    It did if the code has fewer sites that load than the text, if it is the code of the cached twin, or has no more
    sites and no more branches than that (a rolled loop has few sites and runs them often). None where that cannot be
    told: the facts count no loads (such code is not NVIDIA's), or there are neither planned sites nor a twin.
    """
    if reload.memory_instructions is None:
        return None
    if reload.planned_load_sites is not None and _loads(reload) < reload.planned_load_sites:
        return True
    if cached is None or cached.memory_instructions is None:
        return None
    if reload.artifact_sha256 == cached.artifact_sha256:
        return True
    return _loads(reload) <= _loads(cached) and reload.static_branches <= cached.static_branches


def _loads(facts: CodeFacts) -> int:
    assert facts.memory_instructions is not None
    return sum(facts.memory_instructions.get(GLOBAL_LOAD, {}).values())

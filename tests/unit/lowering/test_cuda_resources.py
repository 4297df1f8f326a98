"""What a built kernel may not take."""

from __future__ import annotations

from typing import Any

import pytest

from search.lowering.contract import CodeFacts
from search.lowering.cuda.architectures import ARCHITECTURES
from search.lowering.cuda.facts import KernelFacts, code_facts
from search.lowering.cuda.ptxas import Resources
from search.lowering.cuda.resources import resource_rejection, spill_rejection
from search.lowering.cuda.sass import InstructionCounts

COUNTS = InstructionCounts(
    static_instructions=40,
    static_branches=2,
    memory={"LDG": {"128": 4, "32": 1}, "STG": {"64": 2}},
    shuffles=5,
    warp_reductions=0,
    barriers=0,
)


def kernel(**resources: int) -> KernelFacts:
    fields = {
        "registers": 32,
        "stack_bytes": 0,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "static_shared_bytes": 0,
        "barriers": 0,
    }
    return KernelFacts(
        artifact_sha256="a" * 64,
        code_bytes=640,
        constant_bytes=560,
        resources=Resources(**(fields | resources)),
        counts=COUNTS,
    )


@pytest.mark.parametrize(
    ("resources", "threads", "dynamic", "reason"),
    [
        ({}, 1024, 0, None),
        ({}, 1056, 0, "launch_limits"),
        ({"registers": 64}, 1024, 0, None),
        ({"registers": 65}, 1024, 0, "registers"),
        ({"registers": 255}, 256, 0, None),
        ({"stack_bytes": 512 << 10}, 32, 0, None),
        ({"stack_bytes": (512 << 10) + 16}, 32, 0, "local_memory"),
        ({"static_shared_bytes": 1 << 10}, 128, 226 << 10, None),
        ({"static_shared_bytes": 1 << 10}, 128, (226 << 10) + 1, "shared_memory"),
    ],
)
def test_limits(resources: dict[str, int], threads: int, dynamic: int, reason: str | None) -> None:
    found = resource_rejection(
        kernel(**resources),
        limits=ARCHITECTURES["sm_90"],
        threads_per_block=threads,
        dynamic_shared_bytes=dynamic,
    )
    assert (found and found.reason) == reason
    if found is not None:
        assert found.stage == "resources"
        assert all(isinstance(number, int) for number in found.detail.values())


def test_a_block_that_fits_one_card_does_not_fit_its_relative() -> None:
    """The limits are the card's own: 8.6 and 8.9 have 99 KiB for a block, 8.0 and 8.7 have 163."""
    fits = {
        name: resource_rejection(
            kernel(), limits=ARCHITECTURES[name], threads_per_block=128, dynamic_shared_bytes=(99 << 10) + 1
        )
        is None
        for name in ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_120")
    }
    assert fits == {"sm_80": True, "sm_86": False, "sm_87": True, "sm_89": False, "sm_90": True, "sm_120": False}


def test_spills_are_refused_only_when_forbidden() -> None:
    arguments = {"limits": ARCHITECTURES["sm_80"], "threads_per_block": 128, "dynamic_shared_bytes": 0}
    assert resource_rejection(kernel(spill_load_bytes=4), **arguments) is None
    words: dict[str, Any] = {"source_sha256": "", "tilelang_sha256": "", "numerics": {}, **arguments}
    assert spill_rejection(code_facts(kernel(), **words)) is None
    found = spill_rejection(code_facts(kernel(spill_load_bytes=4), **words))
    assert found is not None
    assert (found.stage, found.reason, found.detail["spill_load_bytes"]) == ("resources", "spills", 4)


def test_the_facts_of_a_trial() -> None:
    facts = code_facts(
        kernel(static_shared_bytes=256, spill_store_bytes=8, spill_load_bytes=12),
        source_sha256="b" * 64,
        tilelang_sha256="c" * 64,
        numerics={"exp": "expf"},
        limits=ARCHITECTURES["sm_90"],
        threads_per_block=512,
        dynamic_shared_bytes=1024,
    )
    document = facts.document()
    assert (document["registers"], document["spill_bytes"], document["shared_bytes"]) == (32, 20, 1280)
    assert document["widest_vector_bits"] == 128
    assert document["collective"] == "warp_shuffle"
    assert document["occupancy"] == {
        "blocks_per_sm": 4,
        "warps_per_sm": 64,
        "fraction": 1.0,
        "limited_by": "threads",
    }
    assert CodeFacts.from_document(document) == facts


def test_a_cpu_document_has_none_of_it() -> None:
    facts = CodeFacts(
        source_sha256="a",
        artifact_sha256="b",
        static_instructions=1,
        static_branches=0,
        stack_bytes=0,
        widest_vector_bits=0,
        code_bytes=4,
    )
    assert list(facts.document()) == [
        "source_sha256",
        "artifact_sha256",
        "static_instructions",
        "static_branches",
        "stack_bytes",
        "widest_vector_bits",
        "code_bytes",
        "registers",
        "spill_bytes",
        "shared_bytes",
        "tilelang_sha256",
        "numerics",
    ]
    assert CodeFacts.from_document(facts.document()) == facts

"""Index text of a packet: every element has its own storage, every lane its own accumulator."""

from __future__ import annotations

import itertools

import pytest

from search.lowering.cpu.geometry import Geometry
from search.lowering.indexing import halves, join, product


def geometry(width: int, lanes: int, row_block: int, vector: int, partials: int) -> Geometry:
    return Geometry(
        width=width,
        lanes=lanes,
        rows_across=width // lanes,
        row_block=row_block,
        vector=vector,
        unroll=1,
        partials=partials,
        simd_main=False,
        simd_rest=False,
    )


LAYOUTS = [
    geometry(width, lanes, row_block, vector, partials)
    for width, lanes in ((1, 1), (8, 8), (8, 1), (8, 2))
    for row_block, vector, partials in ((1, 1, 1), (2, 1, 4), (4, 4, 1), (2, 2, 2))
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_private_storage_is_a_bijection_onto_its_packets(layout: Geometry) -> None:
    passes = 3
    seen = set()
    text = layout.private("p", "q")
    for r, p, s, q in itertools.product(
        range(layout.row_block), range(passes), range(layout.rows_across), range(layout.chunk)
    ):
        seen.add(eval(f"({text})", {}, {"r": r, "p": p, "s": s, "q": q}))
    per_block = passes * layout.width * layout.vector
    assert seen == set(itertools.product(range(layout.row_block), range(per_block)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_lane_of_every_row_and_partial_has_its_own_accumulator(layout: Geometry) -> None:
    text = layout.accumulator("k", "l")
    seen = [
        eval(f"({text})", {}, {"r": r, "k": k, "s": s, "l": lane})
        for r, k, s, lane in itertools.product(
            range(layout.row_block), range(layout.partials), range(layout.rows_across), range(layout.lanes)
        )
    ]
    blocks = layout.row_block * layout.partials
    assert sorted(seen) == sorted(itertools.product(range(blocks), range(layout.width)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_slots_count_up_to_the_rows_of_a_packet(layout: Geometry) -> None:
    slots = [
        eval(layout.slot, {}, {"r": r, "s": s})
        for r, s in itertools.product(range(layout.row_block), range(layout.rows_across))
    ]
    assert slots == list(range(layout.slots))


def test_only_a_packet_of_several_rows_guards_and_clamps() -> None:
    used: set[str] = set()
    alone, several, blocked = geometry(8, 8, 1, 1, 1), geometry(8, 4, 2, 1, 1), geometry(8, 8, 2, 1, 1)
    assert alone.live("rows", used) is None
    assert not used
    assert alone.row == "bx"
    assert several.live("rows", used) == "if live_row(bx * 4 + r * 2 + s, rows):"
    assert blocked.live("rows", used) == "if live_slot(r, bx * 2, rows):"
    assert used == {"live_row", "live_slot"}
    assert several.row == "row[r * 2 + s]"


@pytest.mark.parametrize(
    ("text", "factor", "expected"),
    [("0", 8, "0"), ("p", 1, "p"), ("p", 8, "p * 8"), ("p + 1", 8, "(p + 1) * 8"), ("3", 8, "24"), ("p", 0, "0")],
)
def test_products_fold_what_is_trivial(text: str, factor: int, expected: str) -> None:
    assert product(text, factor) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [(("p", "0"), "p"), (("0", "0"), "0"), (("3", "p", "4"), "p + 7"), (("p", "q", "-2"), "p + q - 2")],
)
def test_sums_gather_constants(terms: tuple[str, ...], expected: str) -> None:
    assert join(*terms) == expected


def test_trees_halve_down_to_one() -> None:
    assert halves(1) == ()
    assert halves(16) == (8, 4, 2, 1)

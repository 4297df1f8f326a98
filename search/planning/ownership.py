"""Who owns which element: stripes of a distributed domain over the lanes of a row."""

from __future__ import annotations


def stripe(extent: int, lanes: int) -> int:
    """Scalars of one domain owned by the busiest lane: ceil(extent / lanes). Blind to vector."""
    return -(-extent // lanes)


def allocated(extent: int, lanes: int, vector: int) -> int:
    """Scalars of storage that each lane holds: ceil(extent / (lanes·vector))·vector, padded to whole vectors."""
    return -(-extent // (lanes * vector)) * vector


def tree_rounds(lanes: int) -> int:
    """Rounds of a tree over the lanes: ceil(log2(lanes)), 0 for one lane."""
    return (lanes - 1).bit_length()

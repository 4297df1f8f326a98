"""Limits: how big a program, an expression or a case may be. The service may set its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Refusal thresholds; everything at a limit is still accepted."""

    expression_chars: int = 4_000
    expression_depth: int = 64
    """Levels of the expression tree (a sum of n terms is n levels deep), and of nesting while it is read.
    Bounds recursion everywhere."""
    expression_nodes: int = 500
    statements: int = 64
    loop_depth: int = 4
    params: int = 16
    dims: int = 16
    axes: int = 16
    tensors: int = 32
    dim_extent: int = 2**24
    tensor_bytes: int = 2 * 2**30
    """All tensors of a case together."""
    domain_points: int = 2**31 - 1
    """Points of one statement per row: kernels count them in int32."""
    points: int = 2**34
    """Points of all statements of a case together, over its rows and the trips of its loops."""


DEFAULT_LIMITS = Limits()
ADMITTED_LIMITS = Limits(
    **{name: 2**62 for name in Limits.__dataclass_fields__ if not name.startswith(("expression", "loop"))}
)
"""For what was admitted before, under the limits of its time. Depth stays bounded: no service allows more of it."""

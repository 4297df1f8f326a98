"""The children of a GPU that is only rehearsed; see ``rehearsal``. Parent side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from search.measuring.benches import CacheContext, ChildKind, Children


def rehearsed(script: Mapping[str, Any] | None = None, *, cache_context: CacheContext = "warm") -> Children:
    """Children that act as the script (``rehearsal.Script`` as JSON) says. Nothing that they time is a measurement."""
    words = json.dumps(script or {})
    return Children(
        kernels=ChildKind(module="search.measuring.gpu.rehearsal_child", arguments=[words, cache_context]),
        torch=ChildKind(module="search.measuring.gpu.rehearsal_torch_child", arguments=[words, cache_context]),
        on_gpu=True,
    )

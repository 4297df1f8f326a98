"""How long planning takes: the 12 seed cases (target: under 0.1 s together) and a case at the candidate limit.

Run: ``python bench/planning.py``. Prints; asserts no time.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search.planning.plan import plan_case
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space

SEED = Path(__file__).parent.parent / "tests" / "golden" / "data" / "seed_search_space.json"
LARGE_SPACE = {
    "width": [2**exponent for exponent in range(11)],
    "unroll": [1, 2, 4, 8, 16],
    "vector": [1, 2, 4, 8],
    "partials": [1, 2, 4],
    "materialize": ["private", "output"],
    "simd_scope": ["none", "main", "all"],
}


def plan(request: dict[str, Any]) -> Counter[str]:
    """Resolve and plan every case of a request; outcomes of in-space candidates."""
    outcomes: Counter[str] = Counter()
    for document in request["cases"]:
        case = resolve_case(document)
        space = resolve_space(request["space"], case, "cpu")
        for item in plan_case(case, space, budget_scalars=request["private_budget_scalars"]):
            if item.in_space:
                outcomes["accepted" if item.rejection is None else "rejected"] += 1
    return outcomes


def report(name: str, run: Callable[[], Counter[str]], repeats: int) -> None:
    """Print the outcomes and the first and median wall time of some runs."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        outcomes = run()
        seconds.append(time.perf_counter() - started)
    print(
        f"{name}: {outcomes['accepted']} accepted, {outcomes['rejected']} rejected; "
        f"first {seconds[0] * 1e3:.1f} ms, median of {repeats} {statistics.median(seconds) * 1e3:.1f} ms"
    )


def main() -> None:
    """Print both measurements."""
    seed = json.loads(SEED.read_text())["request"]
    report("12 seed cases", lambda: plan(seed), repeats=20)
    large = {
        "cases": [{"kernel": "softmax", "dims": {"rows": 128, "cols": 2048}}],
        "space": LARGE_SPACE,
        "private_budget_scalars": 64,
    }
    report("one large space", lambda: plan(large), repeats=3)


if __name__ == "__main__":
    main()

"""What a candidate costs to build: seconds per candidate, amortised over batches, through the product's builder.

Run: ``python -m bench.compile_cost [--candidates 24]``. The target is 0.15 s on 2 cores; starting the child (importing
TileLang) is shown apart, because it happens once per service.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time

from search.lowering.builder import Builder
from search.lowering.contract import BuildRequest
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, CpuMapping

SHAPES = ((64, 256), (23, 769), (128, 8193), (1024, 4096))


def candidates() -> list[Candidate]:
    """Reload candidates of the CPU's default lists."""
    product = itertools.product((8, 16, 32, 64), ("output", "recompute"), ("none", "main", "all"), (False, True))
    return [
        Candidate(
            width=width,
            input="reload",
            fusion="separate",
            materialize=materialize,  # type: ignore[arg-type]
            vector=1,
            unroll=1,
            partials=1,
            mapping=CpuMapping(local_lanes=width, simd_scope=simd, nontemporal=stream),  # type: ignore[arg-type]
        )
        for width, materialize, simd, stream in product
        if not (stream and width * 4 % 64)
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=24, help="how many per case")
    options = parser.parse_args()
    chosen = candidates()[: options.candidates]
    with tempfile.TemporaryDirectory() as store:
        builder = Builder(store)
        started = time.perf_counter()
        warm = resolve_case({"kernel": "softmax", "dims": {"rows": 2, "cols": 3}})
        run(builder, [BuildRequest(id="warm", case=warm.document(), candidate=chosen[0].document())])
        print(f"child started and first candidate built: {time.perf_counter() - started:.2f} s")
        print(f"{'case':24}{'candidates':>11}{'s/candidate':>13}{'lower':>9}{'compile':>9}")
        for kernel, (rows, cols) in itertools.product(("softmax", "rms_norm", "layer_norm"), SHAPES):
            case = resolve_case({"kernel": kernel, "dims": {"rows": rows, "cols": cols}})
            requests = [
                BuildRequest(id=str(number), case=case.document(), candidate=candidate.document())
                for number, candidate in enumerate(chosen)
            ]
            started = time.perf_counter()
            results = run(builder, requests)
            seconds = time.perf_counter() - started
            built = [result for result in results if result.artifact is not None]
            lower = sum(result.lower_seconds for result in built) / len(built)
            compile_ = sum(result.compile_seconds for result in built) / len(built)
            name = f"{kernel} {rows}x{cols}"
            print(f"{name:24}{len(built):>11}{seconds / len(built):>13.3f}{lower:>9.3f}{compile_:>9.3f}", flush=True)
        builder.close()


def run(builder: Builder, requests: list[BuildRequest]):  # type: ignore[no-untyped-def]
    """Build everything."""
    return list(builder.build(requests, timeout_seconds=300, cancelled=lambda: False))


if __name__ == "__main__":
    main()

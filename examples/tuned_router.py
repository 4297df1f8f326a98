"""A small torch module whose row operations come from a catalog, and from torch where the catalog has no winner.

    python examples/tuned_router.py CATALOG                    a catalog file, or a store directory
    python examples/tuned_router.py CATALOG --artifacts STORE  use the libraries that `tuner catalog pull` brought

The module decides once, when it is made, which kernels it has; its forward works the same under torch.compile.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import catalogs
from search import jit


class Winners:
    """Kernels of a catalog for this machine; what it misses is None, with the reason kept."""

    def __init__(self, catalog: catalogs.OpenCatalog, **options: Any) -> None:
        self.catalog, self.options = catalog, options
        self.misses: dict[str, str] = {}

    def find(
        self, kernel: str, *, rows: int, cols: int, params: Mapping[str, float] | None = None
    ) -> jit.Kernel | None:
        """The winner of exactly this shape, built; None for a miss."""
        found = self.catalog.lookup(
            kernel=kernel,
            params=params or {},
            dims={"rows": rows, "cols": cols},
            device=catalogs.this_device(),
            toolchain=catalogs.ANY_TOOLCHAIN,
        )
        if isinstance(found, catalogs.Miss):
            self.misses[kernel] = found.reason
            return None
        return jit.build(found, catalog=self.catalog, **self.options)


class Router(nn.Module):
    """x + experts weighted by softmax(rms_norm(x) · gate), and layer_norm of the sum: [tokens, width] in and out."""

    def __init__(self, tokens: int, width: int, experts: int, winners: Winners) -> None:
        super().__init__()
        self.tokens = tokens
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.Parameter(torch.randn(experts, width) / width**0.5)
        self.rms_weight = nn.Parameter(torch.ones(width))
        self.norm_weight = nn.Parameter(torch.ones(width))
        self.norm_bias = nn.Parameter(torch.zeros(width))
        self.rms_norm = winners.find("rms_norm", rows=tokens, cols=width, params={"eps": 1e-6})
        self.softmax = winners.find("softmax", rows=tokens, cols=experts)
        self.layer_norm = winners.find("layer_norm", rows=tokens, cols=width, params={"eps": 1e-5})

    def forward(self, x: Tensor) -> Tensor:
        """Kernels where there are winners; torch elsewhere, for other batches, and when gradients are wanted."""
        tuned = x.shape[0] == self.tokens and not torch.is_grad_enabled()
        if tuned and self.rms_norm is not None:
            normed = self.rms_norm(x, self.rms_weight)
        else:
            normed = functional.rms_norm(x, self.rms_weight.shape, self.rms_weight, 1e-6)
        scores = self.gate(normed)
        scores = self.softmax(scores) if tuned and self.softmax is not None else torch.softmax(scores, dim=-1)
        mixed = x + scores @ self.experts
        if tuned and self.layer_norm is not None:
            return self.layer_norm(mixed, self.norm_weight, self.norm_bias)
        return functional.layer_norm(mixed, self.norm_weight.shape, self.norm_weight, self.norm_bias, 1e-5)


def main(arguments: list[str] | None = None) -> int:
    """Run the module with and without the catalog's kernels and say how much they differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("catalog", help="catalog file or store directory")
    parser.add_argument("--artifacts", help="store whose compiled libraries are used")
    parser.add_argument("--cache", help="where kernels are built (default: the user's cache)")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=64)
    chosen = parser.parse_args(arguments)

    opened = catalogs.open(chosen.catalog)
    winners = Winners(opened, artifacts=chosen.artifacts, store_dir=chosen.cache)
    torch.manual_seed(0)
    router = Router(chosen.tokens, chosen.width, chosen.experts, winners)
    x = torch.randn(chosen.tokens, chosen.width)
    plain = router(x).detach()  # gradients are on: torch alone
    with torch.inference_mode():
        tuned = router(x)
        compiled = torch.compile(router, fullgraph=True)(x)
    for name in ("rms_norm", "softmax", "layer_norm"):
        kernel = getattr(router, name)
        print(f"{name}: {kernel!r}" if kernel is not None else f"{name}: torch ({winners.misses[name]})")
    print(f"catalog {opened.digest[:12]}")
    print(f"largest difference to torch: {(tuned - plain).abs().max().item():.2g}")
    print(f"largest difference when compiled: {(compiled - plain).abs().max().item():.2g}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

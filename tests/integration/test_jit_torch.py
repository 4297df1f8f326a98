"""Kernels inside torch: operators, fake tensors, torch.compile without a graph break, autograd, and the example."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parent))

import jit_catalog as made

from search import jit
from search.jit import Kernel

pytestmark = [
    pytest.mark.toolchain,
    # inductor imports parts of torch that torch itself calls deprecated
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]
ROWS, COLS = 12, 48
EXAMPLE = Path(__file__).parents[2] / "examples" / "tuned_router.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jit")


@pytest.fixture(scope="module")
def kernels(cache: Path) -> dict[str, Kernel]:
    built = [jit.build(what, dims={"rows": ROWS, "cols": COLS}, store_dir=cache) for what in ("rms_norm", made.SCALED)]
    return {kernel.name: kernel for kernel in built}


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def tensors_of(kernel: Kernel, **options: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in made.inputs_of(kernel, **options).values()]


def test_an_operator_is_registered_once_for_one_kernel(kernels: dict[str, Kernel], cache: Path) -> None:
    kernel = kernels["rms_norm"]
    again = jit.build("rms_norm", dims={"rows": ROWS, "cols": COLS}, store_dir=cache)
    assert again.torch_ops() is kernel.torch_ops()
    other = jit.build("rms_norm", dims={"rows": ROWS, "cols": COLS}, store_dir=cache, any_rows=True)
    assert other.torch_ops().name != kernel.torch_ops().name


@pytest.mark.parametrize("name", ["rms_norm", "scaled_rows"])
def test_operators_hold_what_torch_asks_of_operators(kernels: dict[str, Kernel], name: str) -> None:
    kernel = kernels[name]
    ops, inputs = kernel.torch_ops(), tensors_of(kernel)
    torch.library.opcheck(ops.functional, tuple(inputs))
    specs = [kernel.signature.tensors[place] for place in kernel.signature.outputs]
    torch.library.opcheck(ops.mutating, (*inputs, *(torch.empty(spec.shape(ROWS)) for spec in specs)))


class Calls(nn.Module):
    """Every way to call a kernel from a module."""

    def __init__(self, kernel: Kernel, way: str) -> None:
        super().__init__()
        self.kernel, self.way = kernel, way

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.way == "functional":
            y = self.kernel(x + 1, weight)
        elif self.way == "by name":
            y = self.kernel(weight=weight, x=x + 1)
        else:
            y = torch.empty_like(x)
            if self.way == "all positional":
                self.kernel(x + 1, weight, y)
            else:
                self.kernel(x + 1, weight, out=y)
        return y * 2


@pytest.mark.parametrize("way", ["functional", "by name", "all positional", "out"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_module_compiles_as_one_graph(kernels: dict[str, Kernel], way: str, backend: str) -> None:
    kernel = kernels["rms_norm"]
    x, weight = tensors_of(kernel)
    module = Calls(kernel, way)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, weight), kernel(x + 1, weight) * 2, rtol=0, atol=0)


def test_two_outputs_compile_too(kernels: dict[str, Kernel]) -> None:
    kernel = kernels["scaled_rows"]
    (x,) = tensors_of(kernel)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        scaled, total = kernel(x)
        return scaled + total[:, None]

    scaled, total = kernel(x)
    torch.testing.assert_close(step(x), scaled + total[:, None], rtol=0, atol=0)


def test_any_rows_compile_once_for_every_number_of_rows(cache: Path) -> None:
    kernel = jit.build("rms_norm", dims={"rows": ROWS, "cols": COLS}, store_dir=cache, any_rows=True)
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend, dynamic=True)
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return kernel(x, weight) + 1

    for rows in (5, 9, 31):
        x, weight = tensors_of(kernel, rows=rows)
        torch.testing.assert_close(step(x, weight), kernel(x, weight) + 1, rtol=0, atol=0)
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(ROWS, COLS + 1), "/x/shape"),
        (lambda: torch.zeros(ROWS + 1, COLS), "/x/shape"),
        (lambda: torch.zeros(COLS, ROWS).t(), "/x/strides"),
        (lambda: torch.zeros(ROWS, COLS, dtype=torch.float64), "/x/dtype"),
    ],
)
def test_a_wrong_tensor_is_refused_while_compiling(kernels: dict[str, Kernel], make: Any, words: str) -> None:
    kernel = kernels["rms_norm"]
    compiled = torch.compile(lambda x, weight: kernel(x, weight), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=words):
        compiled(make(), torch.zeros(COLS))


def test_an_operator_has_no_derivative_and_says_so(kernels: dict[str, Kernel]) -> None:
    kernel = kernels["rms_norm"]
    x, weight = tensors_of(kernel)
    weight.requires_grad_()
    y = kernel.torch_ops().functional(x, weight)
    torch.testing.assert_close(y.detach(), kernel(x, weight.detach()), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        y.sum().backward()


def test_parameters_are_no_obstacle_where_gradients_are_off(kernels: dict[str, Kernel]) -> None:
    kernel = kernels["rms_norm"]
    x, weight = tensors_of(kernel)
    parameter = nn.Parameter(weight)
    compiled = torch.compile(lambda x: kernel(x, parameter), fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), kernel(x, weight), rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), kernel(x, weight), rtol=0, atol=0)


def test_nothing_is_allocated_when_outputs_are_given(kernels: dict[str, Kernel]) -> None:
    kernel = kernels["rms_norm"]
    x, weight = tensors_of(kernel)
    y = torch.empty_like(x)
    kernel(x, weight, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kernel(x, weight, y)
        given = sum(event.self_cpu_memory_usage for event in profile.events() or [])
        kernel(x, weight)
    names = [event.name for event in profile.events() or []]
    assert given == 0
    assert "aten::empty" in names, "the profiler sees allocations"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("tuned_router", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_uses_winners_and_falls_back_on_a_miss(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = jit.build("rms_norm", dims={"rows": 16, "cols": 64}, store_dir=cache)
    softmax = jit.build("softmax", dims={"rows": 16, "cols": 8}, store_dir=cache)
    layer = jit.build("layer_norm", dims={"rows": 8, "cols": 64}, store_dir=cache)  # another number of rows: a miss
    store = made.pulled_store(tmp_path / "store", made.catalog_of(norm, softmax, layer), norm, softmax)
    words = [str(store.folder), "--artifacts", str(store.folder), "--cache", str(cache)]
    assert example().main([*words, "--tokens", "16", "--width", "64", "--experts", "8"]) == 0
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert said["rms_norm"].startswith("Kernel(rms_norm, rows=16, cols=64, pulled")
    assert said["softmax"].startswith("Kernel(softmax, rows=16, cols=8, pulled")
    assert said["layer_norm"].startswith("torch (no winner has exactly this key")
    assert "dims.rows" in said["layer_norm"]
    assert float(said["largest difference to torch"]) < 1e-5
    assert float(said["largest difference when compiled"]) < 1e-5


def test_the_examples_module_trains_with_torch_and_serves_with_winners(cache: Path, tmp_path: Path) -> None:
    tuned_router = example()
    norm = jit.build("rms_norm", dims={"rows": 16, "cols": 64}, store_dir=cache)
    catalog = made.pulled_store(tmp_path / "store", made.catalog_of(norm), norm)
    winners = tuned_router.Winners(tuned_router.catalogs.open(catalog), store_dir=cache)
    router = tuned_router.Router(16, 64, 8, winners)
    assert router.rms_norm is not None
    router(torch.randn(16, 64)).sum().backward()
    assert router.rms_weight.grad is not None
    with torch.inference_mode():
        assert router(torch.randn(5, 64)).shape == (5, 64), "another batch is torch's"
